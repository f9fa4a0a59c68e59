"""The errors of a real Kafka that is started for development; every text names the cause and the remedy."""

from __future__ import annotations


class DevBrokerError(RuntimeError):
    """The dev broker cannot be started or used; the base of all below.

    ``error_code`` is Kafka's own number when the broker refused something, else 0.
    """

    def __init__(self, message: str, error_code: int = 0) -> None:
        super().__init__(message)
        self.error_code = error_code


class JavaNotFoundError(DevBrokerError):
    """There is no Java on this machine."""


class JavaTooOldError(DevBrokerError):
    """There is Java, but this Kafka needs a newer one."""


class UnknownKafkaVersionError(DevBrokerError):
    """Not a version of Apache Kafka that can be had, or one that cannot run without ZooKeeper."""


class DownloadError(DevBrokerError):
    """Kafka's jars could not be fetched from Maven Central."""


class DataDirError(DevBrokerError):
    """The data directory cannot be written, or holds another cluster's data."""


class PortTakenError(DevBrokerError):
    """The port that was asked for is in use."""


class BrokerStartError(DevBrokerError):
    """The broker's process ended, or did not answer in time."""
