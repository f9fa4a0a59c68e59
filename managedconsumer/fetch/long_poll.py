"""The partitions that several quiet consumers of one client wait for in one shared Fetch. Pure.

All consumers are at the log's end, so one request serves all: it names each partition once, with the smallest size
that the protocol allows. The records in the response are discarded; only "something changed" matters. When the broker
reports anything for a partition (messages, an error, another log), its consumers fetch it by themselves again.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, NamedTuple

from managedconsumer import codes
from managedconsumer.fetch import request
from managedconsumer.fetch.request import FetchSession, Key

#: Bytes requested of each partition. With 0 a broker would not report that messages are there.
_LEAST_BYTES = 1


class Spot(NamedTuple):
    """A consumer's position in one partition, as a Fetch names it."""

    key: Key
    offset: int
    leader_epoch: int
    last_epoch: int


def _nothing(*_: float) -> None:
    """The callback of a cancelled entry: wakes no consumer."""


class DelegatedFetch:
    """The partitions of one consumer at one broker. The consumer's and the long poll's threads both use it."""

    __slots__ = ("by_id", "carried", "look", "offered", "over", "spots", "wake")

    def __init__(
        self,
        spots: Iterable[Spot],
        by_id: bool,
        wake: Callable[[], object],
        look: Callable[[float], object] = lambda _now: None,
    ) -> None:
        """The long poll's thread calls ``wake`` and ``look``; they must not raise.

        ``wake``: called once, when the consumer has to fetch by itself. ``look``: called after each response with the
        time (seconds), for the consumer's periodic work. It must be quick.
        """
        self.spots = tuple(spots)
        self.by_id = by_id
        self.wake = wake
        self.look = look
        #: True once the long poll has it.
        self.offered = False
        #: True as soon as a request with all of its partitions is in flight.
        self.carried = False
        #: True once cancelled; the consumer fetches by itself.
        self.over = False

    def end(self) -> None:
        """Cancel: the consumer fetches by itself, or is gone. Drop both callbacks, so that nothing wakes it."""
        self.over = True
        self.wake = self.look = _nothing


class _Place:
    """One partition of the request, and the consumers that wait for it."""

    __slots__ = ("entry", "spot", "waiting")

    def __init__(self, spot: Spot) -> None:
        self.spot = spot
        self.waiting: list[DelegatedFetch] = []
        self.entry = request.entry(spot.key[2], spot.leader_epoch, spot.offset, spot.last_epoch, _LEAST_BYTES)

    @property
    def end(self) -> tuple[int, int]:
        """The end to compare: of two different ends of one partition the greater is newer."""
        return self.spot.leader_epoch, self.spot.offset


class LongPollPlan:
    """The partitions that one long poll fetches from one broker. Not thread-safe: the long poll's thread owns it."""

    def __init__(self, isolation: int) -> None:
        """``isolation``: the isolation level of all consumers that wait here, as in a Fetch."""
        self._isolation = isolation
        self._session = FetchSession()
        self._whole: dict[str, Any] = {}
        self._places: dict[Key, _Place] = {}
        # By the name and by the id of the topic: a response may have either.
        self._named: dict[tuple[Any, int], _Place] = {}
        self.by_id = True
        #: True when the next request differs from the last one.
        self.changed = False

    def __len__(self) -> int:
        return len(self._places)

    def add(self, new: DelegatedFetch) -> list[DelegatedFetch]:
        """Add ``new`` to the next request. Returns the consumers that have to fetch instead, perhaps ``new`` itself.

        All consumers at a partition's end have one offset. Of two with different offsets, the lower one has messages to
        fetch.
        """
        if self._places and new.by_id != self.by_id:
            return self._remove([new])
        behind: list[DelegatedFetch] = []
        for spot in new.spots:
            place = self._places.get(spot.key)
            if place is not None and place.end > (spot.leader_epoch, spot.offset):
                return self._remove([*behind, new])
            if place is not None and place.end < (spot.leader_epoch, spot.offset):
                behind += place.waiting
        gone = self._remove(behind)
        self.by_id = new.by_id
        for spot in new.spots:
            place = self._places.get(spot.key)
            if place is None:
                place = self._places[spot.key] = _Place(spot)
                self._named[spot.key[0], spot.key[2]] = self._named[spot.key[1], spot.key[2]] = place
                self.changed = True
            place.waiting.append(new)
        return gone

    def request(self, wait_ms: int) -> dict[str, Any] | None:
        """The body of the next Fetch, which waits ``wait_ms`` at the broker; None: no consumer waits any more."""
        for place in list(self._places.values()):
            place.waiting = [each for each in place.waiting if not each.over]
            if not place.waiting:
                self._forget(place)
        if not self._places:
            return None
        topics = request.by_topic((name, topic_id, place.entry) for (name, topic_id, _), place in self._places.items())
        self._whole = request.body(
            topics, max_wait_ms=wait_ms, min_bytes=1, max_bytes=_LEAST_BYTES, isolation_level=self._isolation
        )
        return self._whole

    def connected(self) -> None:
        """Note a new connection: the broker has no session for it."""
        self._session.reset()

    def body(self, version: int) -> dict[str, Any]:
        """Return what to send for the last :meth:`request`: in a session only the changes."""
        return self._session.body(self._whole, version, None if self.changed else [])

    def sent(self) -> None:
        """The request is in flight: from here on waiting consumers learn of every change."""
        self.changed = False
        for place in self._places.values():
            for each in place.waiting:
                each.carried = True

    def receive(self, answer: Mapping[str, Any]) -> list[DelegatedFetch]:
        """Remove and return the consumers that have messages to fetch, according to this response.

        Raises the error of the whole response. If the session is gone, the next request begins a new one.
        """
        concerned: list[DelegatedFetch] = []
        if not self._session.accept(answer):
            return concerned
        for topic in answer["responses"]:
            name = topic["topic"] or bytes(topic["topic_id"])
            for part in topic["partitions"]:
                place = self._named.get((name, part["partition_index"]))
                if place is not None and self._tells(part, place.spot.offset):
                    concerned += place.waiting
        return self._remove(concerned)

    def _tells(self, part: Mapping[str, Any], offset: int) -> bool:
        if part["error_code"] != codes.NONE or part["records"]:
            return True
        if part.get("diverging_epoch", {}).get("end_offset", -1) >= 0 or part.get("preferred_read_replica", -1) >= 0:
            return True
        end: int = part.get("last_stable_offset", -1) if self._isolation else part["high_watermark"]
        return end > offset

    def everybody(self) -> list[DelegatedFetch]:
        """All waiting consumers."""
        return list({id(each): each for place in self._places.values() for each in place.waiting}.values())

    def give_up(self) -> list[DelegatedFetch]:
        """Remove and return all waiting consumers: the broker does not respond, so they have to fetch."""
        return self._remove(self.everybody())

    def _remove(self, who: Iterable[DelegatedFetch]) -> list[DelegatedFetch]:
        gone = []
        for each in who:
            if not each.over:
                each.over = True
                gone.append(each)
        for each in gone:
            for spot in each.spots:
                place = self._places.get(spot.key)
                if place is not None and each in place.waiting:
                    place.waiting.remove(each)
                    if not place.waiting:
                        self._forget(place)
        return gone

    def _forget(self, place: _Place) -> None:
        name, topic_id, number = place.spot.key
        del self._places[place.spot.key]
        for known in (name, topic_id):
            if self._named.get((known, number)) is place:
                del self._named[known, number]
        self.changed = True
