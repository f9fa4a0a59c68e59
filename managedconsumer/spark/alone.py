"""Refuse two sources of one Spark application that read the same topic as members of one group, before they join.

Each would see a part of the messages. Spark's own source gives each all of them, so a union or a join of two loads
would lose rows silently. A source in Python knows neither its query nor the other sources in it. But all sources of an
application have the JVM's directory for temporary blocks in common: each locks a file there for each of its topics.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from managedconsumer.clock import Deadline
from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.topics import TopicView

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_READER = "pyspark.sql.streaming.python_streaming_source_runner"
# How long (seconds) to wait for a reader that was just stopped to leave its group and to end, and between two tries.
_PATIENCE, _PAUSE = 10.0, 0.1


def place() -> Path | None:
    """The directory that the readers of this application share; None in any other process."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    first = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0])
    ours = spec is not None and spec.name == _READER and first.name.startswith("blockmgr-") and first.is_dir()
    return first if ours and fcntl is not None else None


class TopicHolds:
    """Locks on the topics that a query reads as a member of its group. Used by one thread."""

    def __init__(self, view: TopicView) -> None:
        self._view, self._options, self._handler = view, view.options, view.handler
        self._held: dict[str, Any] = {}

    def hold(self) -> None:
        """Lock the topics unless sources may share them; raises ConfigurationError if another source has one."""
        where = place()
        if where is None or self._options.shares or not self._options.is_member:
            return
        deadline = Deadline(self._handler.now(), _PATIENCE)
        for topic in sorted(self._view.topics() - self._held.keys()):
            while not self._lock(where, topic):
                if deadline.expired(self._handler.now()):
                    raise ConfigurationError(self._why(topic))
                self._handler.sleep(_PAUSE)

    def release(self) -> None:
        while self._held:
            self._held.popitem()[1].close()

    def _lock(self, where: Path, topic: str) -> bool:
        cluster = self._view.cluster.snapshot.cluster_id or self._options.bootstrap
        key = f"{cluster}\n{self._options.group_id}\n{topic}"
        file = (where / f"managedconsumer-{hashlib.sha256(key.encode()).hexdigest()[:32]}").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._held[topic] = file
        return True

    def _why(self, topic: str) -> str:
        return (
            f"another source of this Spark application reads the topic {topic!r} as a member of group "
            f"{self._options.group_id!r}, so each would see only a part of it (two sources of one query: a union, a "
            "join; or two queries). Give each source a group.id of its own, and it reads everything. If they are to "
            "share the partitions, say so with the option group.mode=member"
        )
