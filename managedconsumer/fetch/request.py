"""Fetch requests, for fetch workers, the client's long poll and range readers: version, body, and session. Pure.

In a session (KIP-227) requests after the first name only changed partitions.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, TypeAlias

from managedconsumer import codes
from managedconsumer import errors as err

#: Fetch names topics by id from this version on (KIP-516); below it by name.
TOPIC_ID_VERSION = 13
#: In these versions request and response have one layout, but for tagged fields.
PLAIN_VERSIONS = range(TOPIC_ID_VERSION, 19)
#: From this version on the leader compares our last epoch with its log.
EPOCH_VERSION = 12
#: The first Fetch version with sessions.
SESSION_VERSION = 7
#: Begin a new session.
SESSION_ERRORS = frozenset(
    {codes.FETCH_SESSION_ID_NOT_FOUND, codes.INVALID_FETCH_SESSION_EPOCH, codes.FETCH_SESSION_TOPIC_ID_ERROR}
)
_FIRST_EPOCH, _LAST_EPOCH = 0, 2**31 - 1

#: A partition: its topic's name and id, and its number.
Key: TypeAlias = tuple[str, bytes, int]
#: Changed partitions, each with its entry in the request.
Moved: TypeAlias = list[tuple[Key, Mapping[str, Any]]]


def version_of(newest: int, *, by_id: bool) -> int:
    """The version for a broker that knows ``newest``; ``by_id``: the ids of all topics are known."""
    return newest if by_id else min(newest, TOPIC_ID_VERSION - 1)


def entry(partition: int, leader_epoch: int, offset: int, last_epoch: int, max_bytes: int) -> dict[str, Any]:
    """One partition of the request; ``last_epoch``: the epoch of the last record read (-1: not to be compared)."""
    return {
        "partition": partition,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last_epoch,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }


def by_topic(entries: Iterable[tuple[str, bytes, Any]]) -> list[dict[str, Any]]:
    """Entries, each with the name and the id of its topic, as a request names them."""
    topics: dict[tuple[str, bytes], list[Any]] = {}
    for name, topic_id, each in entries:
        topics.setdefault((name, topic_id), []).append(each)
    return [{"topic": name, "topic_id": topic_id, "partitions": each} for (name, topic_id), each in topics.items()]


def body(
    topics: list[dict[str, Any]],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
    rack: str = "",
) -> dict[str, Any]:
    """A request for all wanted partitions; :meth:`FetchSession.body` adds the session."""
    return {
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "topics": topics,
        "rack_id": rack,
    }


def forget_epochs(topics: Iterable[dict[str, Any]]) -> None:
    """For versions below ``EPOCH_VERSION``: brokers before Kafka 2.7 do not compare epochs in a fetch."""
    for topic in topics:
        for each in topic["partitions"]:
            each["last_fetched_epoch"] = -1


class FetchSession:
    """A fetch session (KIP-227) over one connection. Not thread-safe: it belongs to one fetch worker."""

    def __init__(self, *, used: bool = True) -> None:
        """``used``: False for single requests: each names all partitions, and the broker keeps nothing."""
        self._used = used
        #: The session's id; 0: there is none. And the epoch of the next request, or of the one in flight.
        self.id, self.epoch = 0, _FIRST_EPOCH
        self._known: dict[Key, Mapping[str, Any]] = {}

    def reset(self) -> None:
        """Make the next request name all partitions and begin a new session."""
        self.id, self.epoch = 0, _FIRST_EPOCH
        self._known = {}

    def body(self, body: Mapping[str, Any], version: int, moved: Moved | None = None) -> dict[str, Any]:
        """Return the request to send for ``body``, which names all partitions: in a session only the changes.

        ``moved``: the changes since the last request; None: compare all partitions.
        """
        if version < EPOCH_VERSION:
            forget_epochs(body["topics"])
        if version < SESSION_VERSION or not self._used:
            return {**body, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
        gone: list[Key] = []
        if moved is not None and self.id:
            self._known.update(moved)
        else:
            wanted: dict[Key, Mapping[str, Any]] = {
                (topic["topic"], topic["topic_id"], part["partition"]): part
                for topic in body["topics"]
                for part in topic["partitions"]
            }
            moved = [(key, part) for key, part in wanted.items() if self._known.get(key) != part]
            gone = [key for key in self._known if key not in wanted]
            self._known = wanted
        return {
            **body,
            "session_id": self.id,
            "session_epoch": self.epoch,
            "topics": by_topic((name, topic_id, part) for (name, topic_id, _), part in moved) if moved else [],
            "forgotten_topics_data": by_topic(gone) if gone else [],
        }

    def moved_to(self, epoch: int, moved: Moved) -> None:
        """A consuming thread sent requests: the last one had ``epoch``, and the broker knows ``moved`` by now."""
        if self.id:
            self.epoch = epoch
            self._known.update(moved)

    def accept(self, answer: Mapping[str, Any]) -> bool:
        """Note the session in the response; False: it is gone, and the caller sends the whole request.

        Raises the error of the whole response, if it has another one.
        """
        code = answer.get("error_code", codes.NONE)
        if code in SESSION_ERRORS:
            self.reset()
            return False
        if code:
            raise err.error_for_code(code)
        self.id = answer.get("session_id", 0)
        if self.id:
            self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1
        else:
            self.reset()  # the broker has no slot for another session: each request names all partitions
        return True
