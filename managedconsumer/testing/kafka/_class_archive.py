"""Java's archive of Kafka's loaded classes: with it a node starts in about half of the CPU time.

``python -m tests.record_classes`` makes it once for a Java and a Kafka. Java ignores an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from managedconsumer.testing.kafka._owned import NotOurs, check_owned

RECORD = "-XX:ArchiveClassesAtExit="
# Java would write a warning into the log of a node whose archive does not fit.
SILENT = "-Xlog:cds=off,cds+dynamic=off"


def archive_path(java: str, jars: Sequence[Path]) -> Path:
    place = jars[0].parent
    key = hashlib.sha256(os.path.realpath(java).encode()).hexdigest()[:12]
    return place.parent / f"classes-{place.name}-{key}.jsa"


def archive_options(java: str, jars: Sequence[Path], extra: Sequence[str] = ()) -> list[str]:
    """The options with which Java maps the archive; none if there is no archive that is safe to use."""
    if any(option.startswith(RECORD) for option in extra):
        return []  # Java refuses to map one archive of this kind and to write another
    path = archive_path(java, jars)
    try:
        check_owned(path)
    except (NotOurs, OSError):
        return []
    return [f"-XX:SharedArchiveFile={path}", SILENT]
