"""Makes the archive of Kafka's classes that ``managedconsumer.testing.kafka._class_archive`` describes.

``python -m tests.record_classes 4.4.0 3.9.2`` makes it for these releases.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from managedconsumer.testing.kafka._class_archive import RECORD, SILENT, archive_path
from managedconsumer.testing.kafka._jars import kafka_jars, locked, parse_version
from managedconsumer.testing.kafka._java import java_major, require_java
from managedconsumer.testing.kafka.devbroker import DevBroker

_FIRST_JAVA = 13  # that can write such an archive
_DUMP_TIMEOUT = 120.0


def record(version: str) -> Path | None:
    """Makes the archive for Kafka ``version`` and the Java at hand, unless it is there; takes about 10 seconds.

    Starts a broker, writes and reads metadata, and stops it: Java writes the archive at the end. Returns the path, or
    None if this Java cannot make one (before Java 13). Raises what starting a :class:`DevBroker` raises. Safe to call
    from several processes at once.
    """
    found = parse_version(version)
    java = require_java(found.java_minimum, f"Apache Kafka {version}")
    if (java_major(java) or 0) < _FIRST_JAVA:
        return None
    path = archive_path(java, kafka_jars(found))
    with locked(path.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=path.parent) as work:
        if path.exists():
            return path
        made = Path(work) / "classes.jsa"
        broker = DevBroker(version, data_dir=Path(work) / "data", jvm_options=(f"{RECORD}{made}", SILENT))
        broker.start()
        try:
            broker.create_topic("archive", 1)
        finally:
            broker.stop(_DUMP_TIMEOUT)
        if not made.exists():
            return None
        os.replace(made, path)
    return path


if __name__ == "__main__":
    for each in sys.argv[1:]:
        record(each)
