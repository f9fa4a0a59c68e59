"""Incremental fetch sessions (KIP-227): requests after the first name only changed partitions. Pure."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from managedconsumer import codes
from managedconsumer.fetch.request import by_topic, without_session

#: The first Fetch version with sessions.
SESSION_VERSION = 7
#: Begin a new session.
SESSION_ERRORS = frozenset(
    {codes.FETCH_SESSION_ID_NOT_FOUND, codes.INVALID_FETCH_SESSION_EPOCH, codes.FETCH_SESSION_TOPIC_ID_ERROR}
)
_FIRST_EPOCH, _LAST_EPOCH = 0, 2**31 - 1

Key = tuple[str, bytes, int]


class FetchSession:
    """A fetch session (KIP-227) over one connection. Not thread-safe: it belongs to one fetch worker."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = _FIRST_EPOCH
        self._known: dict[Key, Mapping[str, Any]] = {}

    @property
    def alive(self) -> bool:
        """True while the broker keeps the partitions of the session."""
        return bool(self._id)

    def reset(self) -> None:
        """Make the next request name all partitions and begin a new session."""
        self._id, self._epoch = 0, _FIRST_EPOCH
        self._known = {}

    def shorten(self, body: Mapping[str, Any], version: int) -> dict[str, Any]:
        """Return the incremental request for ``body``, which names all partitions."""
        if version < SESSION_VERSION:
            return without_session(body)
        wanted: dict[Key, Mapping[str, Any]] = {
            (topic["topic"], topic["topic_id"], part["partition"]): part
            for topic in body["topics"]
            for part in topic["partitions"]
        }
        changed = {key: part for key, part in wanted.items() if self._known.get(key) != part}
        gone = [key for key in self._known if key not in wanted]
        self._known = wanted
        return {
            **body,
            "session_id": self._id,
            "session_epoch": self._epoch,
            "topics": _by_topic(changed.items()),
            "forgotten_topics_data": by_topic(gone),
        }

    def repeat(self, body: Mapping[str, Any], moved: Sequence[tuple[Key, Mapping[str, Any]]]) -> dict[str, Any] | None:
        """Return the last request with changes for the partitions ``moved``; None: only a whole request will do.

        ``body`` is the last request; this method does not read its topics.
        """
        if not self._id:
            return None
        self._known.update(moved)
        return {
            **body,
            "session_id": self._id,
            "session_epoch": self._epoch,
            "topics": _one_topic(*moved[0]) if len(moved) == 1 else _by_topic(moved),
            "forgotten_topics_data": (),
        }

    @property
    def id(self) -> int:
        """The session's id; 0: there is none."""
        return self._id

    @property
    def epoch(self) -> int:
        """The epoch of the next request, or of the one in flight."""
        return self._epoch

    def moved_to(self, epoch: int, moved: Sequence[tuple[Key, Mapping[str, Any]]]) -> None:
        """A consuming thread sent requests: the last one had ``epoch``, and the broker knows ``moved`` by now."""
        if self._id:
            self._epoch = epoch
            self._known.update(moved)

    def accept(self, answer: Mapping[str, Any]) -> bool:
        """Note the session in the response; False: it is gone, and the caller sends the whole request."""
        if answer.get("error_code") in SESSION_ERRORS:
            self.reset()
            return False
        self._id = answer.get("session_id", 0)
        if self._id:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        else:
            self.reset()  # the broker has no slot for another session: each request names all partitions
        return True


def _one_topic(key: Key, part: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"topic": key[0], "topic_id": key[1], "partitions": [part]}]


def _by_topic(parts: Iterable[tuple[Key, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    return by_topic((name, topic_id, part) for (name, topic_id, _), part in parts)
