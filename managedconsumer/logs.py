"""Fields of log lines: ``group``, ``member``, ``generation``, ``topic``, ``partition``. Pure.

They are attributes of the ``LogRecord``, for a formatter that writes JSON. A line has those that are known.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer.structs import NO_GENERATION, Generation


class LogFields:
    """The fields of one consumer's log lines, for a logger's ``extra=``. Safe from any thread without a lock.

    A call makes a dict, so a line for every message must not have it.
    """

    __slots__ = ("_generation", "_group")

    def __init__(self, group: str | None = None) -> None:
        self._group = group
        self._generation: Generation = NO_GENERATION

    def standing(self, generation: Generation) -> None:
        """The membership is in ``generation`` from here on."""
        self._generation = generation

    def __call__(self, tp: tuple[str, int] | None = None) -> Mapping[str, Any]:
        """Return the member's current fields and, for a line about one partition ``tp``, its topic and number."""
        return self.of(self._generation, tp)

    def tell(self, log: Callable[..., None], text: str, *args: object) -> None:
        """Write a line about the group; ``log``: like ``log.warning``."""
        log("group %s: " + text, self._group, *args, extra=self(), stacklevel=2)

    def tell_of(self, tp: tuple[str, int], log: Callable[..., None], text: str, *args: object) -> None:
        """Write a line about one partition."""
        log("%s-%d: " + text, *tp, *args, extra=self(tp), stacklevel=2)

    def of(self, generation: Generation, tp: tuple[str, int] | None = None) -> Mapping[str, Any]:
        """Return the fields for a line about ``generation``, without unknown ones (no group, not joined yet)."""
        fields: dict[str, Any] = {}
        if self._group is not None:
            fields["group"] = self._group
        if generation.member_id:
            fields["member"] = generation.member_id
        if generation.id >= 0:
            fields["generation"] = generation.id
        if tp is not None:
            fields["topic"], fields["partition"] = tp
        return fields
