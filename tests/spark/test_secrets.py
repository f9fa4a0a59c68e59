"""No error, repr or traceback of the source shows a password, a token or a key."""

from __future__ import annotations

import traceback

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.shown import without_secrets
from managedconsumer.spark.claims.places import log_at
from managedconsumer.spark.options import SourceOptions
from managedconsumer.stores.objects import FsspecObjects, local_path

SECRET = "hunter2-s3cr3t"
BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "group.id": "g"}
BEARER = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    "options",
    [
        {"store": f"postgresqlx://u:{SECRET}@h/db"},
        {"store": f"sqlite://u:{SECRET}@h/db"},
        {"store": f"delta://u:{SECRET}@h/db"},
        {"store": f"iceberg://lake/claims?credential={SECRET}"},
        {"claims": f"nosuch://{SECRET}@bucket/x"},
        {"value.format": "avro", "value.registry": f"ftp://u:{SECRET}@h"},
        {**BEARER, "kafka.sasl.oauthbearer.token.provider": "os:getcwd", "kafka.sasl.oauthbearer.extensions": SECRET},
        {**BEARER, "kafka.sasl.oauthbearer.token.provider": SECRET},
    ],
)
def test_an_option_that_cannot_be_used_is_refused_without_its_secret(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as told:
        SourceOptions.parse({**BASE, **options}, streaming=True)
    assert SECRET not in "".join(traceback.format_exception(told.value)), "Spark prints the causes, too"


@pytest.mark.parametrize("password", [f"%{SECRET}", f"{SECRET}%zz"])
def test_a_url_that_postgresqls_library_cannot_read(password: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigurationError, match="have to be quoted") as told:
        log_at(f"postgresql://u:{password}@h/db")
    assert SECRET not in "".join(traceback.format_exception(told.value))


def test_what_can_be_used_shows_no_secret_either() -> None:
    for options in ({"store": f"postgresql://u:{SECRET}@h/db"}, {"claims": f"memory://u:{SECRET}@h/db"}):
        assert SECRET not in repr(SourceOptions.parse({**BASE, **options}, streaming=True))
    assert SECRET not in repr(FsspecObjects(f"memory://u:{SECRET}@h/db"))
    assert SECRET not in repr(log_at(f"delta+s3://u:{SECRET}@bucket/claims"))
    with pytest.raises(ConfigurationError, match="not s3") as told:
        local_path(f"s3://u:{SECRET}@bucket/x")
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/claims", "/data/claims"),
        ("sqlite:////data/x.db", "sqlite:////data/x.db"),
        ("s3://bucket/path", "s3://bucket/path"),
        ("postgresql://u:p@h/db", "postgresql://***@h/db"),
        ("postgresql://u:p@s/w?r#d@h/db", "postgresql://***@h/db"),
        ("postgresql://h/db?password=x&sslmode=require", "postgresql://h/db?password=***&sslmode=***"),
        ("iceberg://lake/a.b?x", "iceberg://lake/a.b?***"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
