"""Fields of log lines, beside their text: ``group``, ``member``, ``generation``, ``topic``, ``partition``.

They are attributes of the ``LogRecord``, so a formatter that writes JSON finds them. A line has those that are known
and that it is about. Pure.
"""

from __future__ import annotations

from typing import Any, Mapping

from managedconsumer.structs import NO_GENERATION, Generation


class LogFields:
    """The fields of one consumer's log lines, for a logger's ``extra=``.

    Safe from any thread without a lock: the generation is replaced as a whole. A call makes a dict, so lines that may
    come with every message must not have it.
    """

    __slots__ = ("_generation", "_group")

    def __init__(self, group: str | None = None) -> None:
        self._group = group
        self._generation: Generation = NO_GENERATION

    def standing(self, generation: Generation) -> None:
        """The membership is in ``generation`` from here on."""
        self._generation = generation

    def __call__(self, tp: tuple[str, int] | None = None) -> Mapping[str, Any]:
        """Return the member's fields of this moment and, in a line about one partition ``tp``, its topic and number."""
        return self.of(self._generation, tp)

    def of(self, generation: Generation, tp: tuple[str, int] | None = None) -> Mapping[str, Any]:
        """The same for a line about ``generation``. What there is not (no group, not joined yet) is left out."""
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
