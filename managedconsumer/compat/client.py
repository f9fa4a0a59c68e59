"""pykafka's KafkaClient on today's protocol."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING, Any, Collection, Iterator

from managedconsumer import errors as err
from managedconsumer.compat.cluster import Cluster, TopicDict
from managedconsumer.compat.parts import Broker, described
from managedconsumer.compat.tls import choose_security
from managedconsumer.config import check_bool, check_int, refuse_dict, to_text, wrong_value
from managedconsumer.runtime.cluster.cluster import PLAIN, parse_bootstrap
from managedconsumer.runtime.cluster.cluster import Cluster as RuntimeCluster
from managedconsumer.runtime.net.connection import ConnectionSettings
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.waiting.handlers import default_handler

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Unpack

    from managedconsumer.admin.admin import Admin
    from managedconsumer.admin.values import GroupDescription, GroupLag, GroupListing, Reset
    from managedconsumer.typed_options import SecurityOptions

LONGEST_CONNECT_MS = 10_000
_VERSION = re.compile(r"\d+(\.\d+){1,3}")


class _Default(str):
    """A default that differs from the same text of the user's."""

    __slots__ = ()


DEFAULT_HOSTS = _Default("127.0.0.1:9092")


class KafkaClient:
    """A cluster's brokers and topics. Thread-safe; its consumers have connections of their own, and share idle ones.

    :param hosts: ``host:port[,host:port...]`` of some brokers; they name the others
    :param zookeeper_hosts: ignored with a DeprecationWarning: clients do not use ZooKeeper any more
    :param socket_timeout_ms: how long to wait for a connection and for a response
    :param offsets_channel_socket_timeout_ms: accepted as in pykafka, without effect
    :param use_greenlets: wait by gevent's greenlets instead of threads, also in the client's consumers
    :param exclude_internal_topics: hide topics whose names start with two underscores
    :param source_address: ``host`` or ``host:port`` to connect from
    :param ssl_config: an SslConfig, pykafka's or ours, or an ``ssl.SSLContext``
    :param broker_version: ignored: versions are agreed on with each broker
    :param security: TLS and SASL settings, or give its fields (``sasl_mechanism=...``, ``ssl_cafile=...``) right here
    :param metadata_max_age_ms: how old metadata may get before they are fetched again
    :param client_id: part of every request; appears in the brokers' logs and quotas

    Connects at once; raises NoBrokersAvailableError (which lists each attempt and its error), TlsError,
    SaslAuthenticationError, ProtocolMismatchError, UnsupportedBrokerError; TypeError or ConfigurationError for bad
    arguments.
    """

    def __init__(
        self,
        hosts: str | bytes = DEFAULT_HOSTS,
        zookeeper_hosts: Any = None,
        socket_timeout_ms: int = 30 * 1000,
        offsets_channel_socket_timeout_ms: int = 10 * 1000,
        use_greenlets: bool = False,
        exclude_internal_topics: bool = True,
        source_address: str = "",
        ssl_config: Any = None,
        broker_version: str | None = None,
        *,
        security: Security | None = None,
        metadata_max_age_ms: int = 30 * 1000,
        client_id: str | bytes = "managedconsumer",
        **security_options: Unpack[SecurityOptions],
    ) -> None:
        refuse_dict(self, hosts)
        if zookeeper_hosts is not None:
            _warn_of_zookeeper(hosts, zookeeper_hosts)
        _check_version(broker_version)
        check_int("offsets_channel_socket_timeout_ms", offsets_channel_socket_timeout_ms, 1, "ms")
        hidden = check_bool("exclude_internal_topics", exclude_internal_topics)
        timeout = check_int("socket_timeout_ms", socket_timeout_ms, 1, "ms")
        seeds = parse_bootstrap(without_paths(hosts))
        settings = ConnectionSettings(
            client_id=to_text(client_id, "client_id"),
            # All addresses get their turn within the socket timeout.
            connect_timeout_ms=max(1, min(LONGEST_CONNECT_MS, timeout // len(seeds))),
            request_timeout_ms=timeout,
            security=choose_security(ssl_config, security, security_options),
            source_address=parse_source(source_address),
        )
        self._runtime = RuntimeCluster(
            seeds,
            default_handler(check_bool("use_greenlets", use_greenlets)),
            settings,
            metadata_max_age_ms=check_int("metadata_max_age_ms", metadata_max_age_ms, 1, "ms"),
        )
        try:
            self._runtime.refresh()
        except BaseException as error:
            self._runtime.close()
            if isinstance(error, PLAIN):
                raise error.with_traceback(None) from error.__cause__
            raise
        self.cluster = Cluster(self._runtime, owned=True, exclude_internal_topics=hidden, socket_timeout_ms=timeout)

    @property
    def brokers(self) -> dict[int, Broker]:
        """The known brokers by id."""
        return self.cluster.brokers

    @property
    def topics(self) -> TopicDict:
        """The topics by name (str or bytes); looking a missing one up creates it if the broker allows that."""
        return self.cluster.topics

    def update_cluster(self) -> None:
        """Fetch the metadata of all brokers and topics. Waits; raises NoBrokersAvailableError."""
        self.cluster.update()

    def groups(self, *, lag: bool = False) -> list[GroupListing]:
        """Return all consumer groups that the user may describe, by name. Raises NoBrokersAvailableError.

        With ``lag`` each has its :meth:`lag`, by few requests for all.
        """
        with self._admin() as admin:
            return admin.groups(lag=lag)

    def group(self, name: str | bytes) -> GroupDescription:
        """Return a group's state, assignor, members and their partitions. Raises GroupIdNotFound."""
        group = to_text(name, "group")
        with self._admin() as admin:
            return admin.describe([group])[group]

    def lag(self, name: str | bytes) -> GroupLag:
        """Return a group's lag in each partition, in messages and seconds. Raises GroupIdNotFound.

        Reads one message of each partition with a lag, for its timestamp.
        """
        group = to_text(name, "group")
        with self._admin() as admin:
            return admin.lag([group])[group]

    def reset(
        self,
        group: str | bytes,
        topic: str | bytes,
        to: str | int | datetime | None = None,
        *,
        shift: int | None = None,
        partitions: Collection[int] | None = None,
        execute: bool = False,
    ) -> Reset:
        """Move an idle group's committed offsets of a topic; without ``execute`` only return the plan.

        ``to``: "earliest", "latest", an offset, a datetime, an ISO 8601 time (UTC where it names no zone), or a text
        like "2 hours ago"; ``shift``: a number of messages from the committed offset. Offsets stay within the log.
        Raises GroupNotEmpty, which names the members, and changes nothing, for a group that is in use.
        """
        names = to_text(group, "group"), to_text(topic, "topic name")
        with self._admin() as admin:
            return admin.reset(*names, to, shift=shift, partitions=partitions, execute=execute)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Admin]:
        from managedconsumer.admin.admin import Admin  # most programs never ask

        admin = Admin(self._runtime)
        try:
            yield admin
        finally:
            admin.close()

    def close(self) -> None:
        """Close the client's own connections, not its consumers'. A later call connects again."""
        self.cluster.close()

    def __enter__(self) -> KafkaClient:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __repr__(self) -> str:
        seeds = ",".join(f"{host}:{port}" for host, port in self._runtime.bootstrap)
        return described(self, f"hosts={seeds}")


def _warn_of_zookeeper(hosts: Any, zookeeper_hosts: Any) -> None:
    if isinstance(hosts, _Default):
        raise err.ConfigurationError(
            f"zookeeper_hosts={zookeeper_hosts!r}: brokers are not looked up in ZooKeeper any more (Kafka 4 has none); "
            "give the address of a broker, as in hosts='kafka1:9092'"
        )
    warnings.warn(
        "zookeeper_hosts is ignored: the brokers in hosts= tell all that is needed", DeprecationWarning, stacklevel=3
    )


def _check_version(broker_version: Any) -> None:
    """Warn of a value that cannot be a version: programs written for pykafka pass all sorts of versions."""
    if broker_version is not None and not (isinstance(broker_version, str) and _VERSION.fullmatch(broker_version)):
        warnings.warn(
            f"broker_version={broker_version!r} is no version number; it is ignored, the brokers tell theirs",
            stacklevel=3,
        )


def without_paths(hosts: Any) -> Any:
    """Remove a ``/path`` behind each port, which pykafka allows as ZooKeeper does."""
    hosts = to_text(hosts, "hosts") if isinstance(hosts, bytes) else hosts
    return re.sub(r"(:\d+)/[^,]*", r"\1", hosts) if isinstance(hosts, str) else hosts


def parse_source(address: Any) -> tuple[str, int] | None:
    """Read pykafka's ``source_address``: ``""``, ``"host"`` or ``"host:port"``."""
    if not address:
        return None
    text = to_text(address, "source_address")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), 0
    if not port.isdigit() or int(port) > 65535:
        raise wrong_value("source_address", text, "'host' or 'host:port'")
    return host.strip("[]"), int(port)
