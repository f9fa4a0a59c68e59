"""Kafka's own Java programs, run on the broker's jars."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from managedconsumer.testing.kafka._class_archive import archive_options
from managedconsumer.testing.kafka._errors import BrokerStartError, DevBrokerError

TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
#: Where they were before (up to which release).
_OLDER = {(4, 3): {"kafka-configs": "kafka.admin.ConfigCommand"}}
_OLDER[3, 9] = _OLDER[4, 3] | {
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
}
# A small heap, no second compiler and the serial collector: a broker of 150 MB that is up in a few seconds.
_SMALL = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData", "-Djava.awt.headless=true"]


def tool_class(name: str, kafka: tuple[int, int]) -> str:
    """The class behind a tool's usual name in the release ``kafka``; a class name with dots is taken as it is."""
    if "." in name:
        return name
    older = next((_OLDER[last] for last in sorted(_OLDER) if kafka <= last), {})
    found = older.get(name) or TOOLS.get(name)
    if found is None:
        raise DevBrokerError(f"unknown Kafka tool {name!r}; known are {', '.join(sorted(TOOLS))}, or give a class name")
    return found


def log_options(level: str) -> list[str]:
    """Settings of slf4j-simple: the log goes to standard error, which goes to the node's file."""
    prefix = "-Dorg.slf4j.simpleLogger."
    return [
        f"{prefix}defaultLogLevel={level}",
        f"{prefix}showDateTime=true",
        f"{prefix}dateTimeFormat=yyyy-MM-dd_HH:mm:ss,SSS",
        f"{prefix}log.org.apache.kafka.common.config.AbstractConfig=warn",
        "-Dlog4j2.statusLoggerLevel=OFF",
    ]


def broker_command(java: str, jars: Sequence[Path], heap_mb: int, properties: Path, extra: Sequence[str]) -> list[str]:
    options = [f"-Xmx{heap_mb}m", "-Xms64m", "-XX:+ExitOnOutOfMemoryError", *_SMALL, *log_options("info")]
    options += [*archive_options(java, jars, extra), *extra]
    return [java, *options, "-cp", _class_path(jars), "kafka.Kafka", str(properties)]


def _class_path(jars: Sequence[Path]) -> str:
    return ":".join(map(str, jars))


def format_storage(
    java: str, jars: Sequence[Path], properties: Path, cluster_id: str, scram_users: Mapping[str, str]
) -> None:
    """Writes the first metadata of a node's data directory; SCRAM users can only be given here."""
    arguments = ["format", "-t", cluster_id, "-c", str(properties)]
    for user, password in scram_users.items():
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            arguments += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
    done = run_class(java, jars, "kafka.tools.StorageTool", arguments, None, 120.0)
    if done.returncode != 0:
        raise BrokerStartError(
            f"Kafka's storage tool refused the settings in {properties}:\n{done.stdout}{done.stderr}"
        )


def run_class(
    java: str, jars: Sequence[Path], name: str, arguments: Sequence[str], text: str | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs a program and waits for it; ``text`` goes to its standard input."""
    options = ["-Xmx256m", *_SMALL, *log_options("error"), *archive_options(java, jars)]
    command = [java, *options, "-cp", _class_path(jars), name, *arguments]
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}  # or Java takes ä in an argument for a question mark
    try:
        return subprocess.run(
            command,
            input=text or "",
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DevBrokerError(f"{name} did not finish within {timeout:.0f} s") from error
