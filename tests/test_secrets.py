"""No error, and nothing that a command prints, has a secret: also where a setting is wrong and is to be named."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import KafkaClient, cli, shown
from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.security import security_from
from managedconsumer.testing.kafka._jars import repository_name

SECRET = "hunter2-s3cr3t"
BEARER = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token": lambda: SECRET}


def refused(call: Callable[[], Any], *remedies: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        call()
    whole = "".join(traceback.format_exception(caught.value))
    assert SECRET not in whole
    for remedy in remedies:
        assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"sasl.password: {SECRET}\n", 1),  # YAML's way
        (f"sasl.username=a\nsasl.password\n  {SECRET}\n", 2),
        (f"sasl.password=\\\n  {SECRET}\n", 2),  # Java's files go on in the next line
        (f"x=1\n\n{SECRET}\n", 3),
    ],
)
def test_a_line_of_a_file_of_properties(
    text: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    assert cli.main(["topics", "-b", "127.0.0.1:1", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert SECRET not in said
    assert f"{path}, line {line} is not name=value" in said
    assert "'='" in said


def test_a_file_of_properties_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(b"x=1\nsasl.password=" + SECRET.encode() + b"\xff\n")
    assert cli.main(["topics", "-b", "127.0.0.1:1", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path} is no text in UTF-8" in said
    assert SECRET not in said


def test_options_of_a_login_with_a_token() -> None:
    java = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    given = {**java, "sasl.oauthbearer.token.provider": "os:getcwd"}
    refused(lambda: security_from({**given, "sasl.oauthbearer.extensions": SECRET}), "part 1 of 1 has no '='")
    refused(lambda: security_from({**given, "sasl.oauthbearer.extensions": f"a={SECRET},b"}), "part 2 of 2")
    refused(lambda: security_from({**java, "sasl.oauthbearer.token.provider": SECRET}), "module:function")
    for wrong in (SECRET, {"a": [SECRET]}, {SECRET: 1}, [SECRET]):
        refused(lambda wrong=wrong: KafkaClient("127.0.0.1:1", **BEARER, sasl_oauth_extensions=wrong), "dict of names")


@pytest.mark.parametrize(
    "hosts", [f"kafka://u:{SECRET}@h:9092", f"u:{SECRET}@h:9092", f"u:x,{SECRET}@h:9092", f"h:1,https://u:{SECRET}@h"]
)
def test_an_address_with_a_login(hosts: str) -> None:
    refused(lambda: KafkaClient(hosts), "sasl_username and sasl_password")


def test_an_address_that_is_a_url() -> None:
    refused(lambda: KafkaClient("kafka://localhost:9092"), "leave 'kafka://' out and write host:port")
    refused(lambda: KafkaClient("h:1,PLAINTEXT://localhost:9092"), "leave 'PLAINTEXT://' out")


def test_a_mirror_with_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANAGEDCONSUMER_MAVEN_REPOSITORY", f"https://u:{SECRET}@mirror/maven2")
    assert repository_name().startswith("the mirror https://***@mirror/maven2 ")
    assert (
        shown.without_login(f"at url https://u:{SECRET}/@x@mirror/m: refused") == "at url https://***@mirror/m: refused"
    )
