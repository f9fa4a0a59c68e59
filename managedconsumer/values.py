"""Base of frozen values that check what they are given. Those that need no check are named tuples.

Neither is a dataclass: the module ``dataclasses`` and each of its classes cost a start of the program a millisecond.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Value:
    """Equal to another one of its class with the same fields; cannot be changed. Usable from any thread."""

    #: The names that count for equality, in order.
    _fields: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name} stays as it is")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name} stays as it is")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"
