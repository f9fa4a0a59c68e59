"""``-b`` and ``--config``: the cluster that a command asks, and the login for it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from managedconsumer.admin.admin import Admin
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.net.connection import ConnectionSettings
from managedconsumer.runtime.waiting.handlers import default_handler
from managedconsumer.spark.security import security_from

_DEFAULT = "localhost:9092"
_CONNECT_MS = 5_000
_REQUEST_MS = 20_000

F = TypeVar("F", bound=Callable[..., Any])


def connection_options(function: F) -> F:
    """The options ``-b`` and ``--config``; the command gets ``bootstrap`` and ``config``."""
    options = [
        click.option(
            "-b",
            "--bootstrap",
            envvar="MANAGEDCONSUMER_BOOTSTRAP",
            metavar="HOST:PORT,...",
            help=f"Some brokers of the cluster. [default: bootstrap.servers of --config, or {_DEFAULT}]",
        ),
        click.option(
            "--config",
            envvar="MANAGEDCONSUMER_CONFIG",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A file of properties, in the names of Java's client or librdkafka: bootstrap.servers, "
            "security.protocol, ssl.*, sasl.*, client.id. Secrets belong here, not on the command line.",
        ),
    ]
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


def with_admin(function: Callable[..., Any]) -> Callable[..., Any]:
    """:func:`connection_options` for a command whose first argument is an :class:`Admin` of that cluster."""

    @connection_options
    @functools.wraps(function)
    def asking(bootstrap: str | None, config: Path | None, **given: Any) -> Any:
        with prepared(bootstrap, config) as (admin, _):
            return function(admin, **given)

    return asking


def read_properties(path: Path) -> dict[str, str]:
    """``name=value`` lines; ``#`` and ``!`` begin comments. An error does not show the line: it may be secret."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is no text in UTF-8: byte {error.start} is not") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(
                f"{path}, line {number} is not name=value: write each property in one line, with '=' behind its name"
            )
        found[name.strip().lower()] = value.strip()
    return found


@contextlib.contextmanager
def prepared(bootstrap: str | None, config: Path | None) -> Iterator[tuple[Admin, Cluster]]:
    """Yield an admin and its cluster, not connected yet; both are closed at the end."""
    given = read_properties(config) if config is not None else {}
    settings = ConnectionSettings(
        client_id=given.get("client.id", "managedconsumer-cli"),
        connect_timeout_ms=_CONNECT_MS,
        request_timeout_ms=_REQUEST_MS,
        security=security_from(given),
    )
    address = bootstrap or given.get("bootstrap.servers") or _DEFAULT
    cluster = Cluster(parse_bootstrap(address), default_handler(False), settings)
    admin = Admin(cluster)
    try:
        yield admin, cluster
    finally:
        admin.close()
        cluster.close()
