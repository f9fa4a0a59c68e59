"""Bases of frozen values: ``Value`` for those that convert their arguments, ``NamedTuple`` for all others.

A dataclass would cost each start of the program a millisecond. ``NamedTuple`` is that of ``typing`` for a type checker;
at run time ``collections.namedtuple`` makes the class, as ``typing`` compiles each field's type before Python 3.14 (10
ms for the package).
"""

from __future__ import annotations

from collections import namedtuple
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Iterable, Iterator, TypeVar

_T = TypeVar("_T", bound=tuple[Any, ...])


class Value:
    """Immutable, and equal to another one of its class with the same fields. Usable from any thread."""

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


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTupleType(type):
        """Turns a class with annotations into the named tuple of these fields."""

        def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(mcs, name, bases, body)
            fields = body["__annotations__"]
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults)
            made.__new__.__annotations__ = fields
            for key, value in body.items():
                setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_NamedTupleType):
        """A frozen tuple whose fields have names, see ``typing.NamedTuple``."""


def each(kind: type[_T], rows: Iterable[tuple[Any, ...]]) -> Iterator[_T]:
    """Return every row, which has all fields, as a ``kind`` of ``NamedTuple``, without a Python call for each."""
    return map(tuple.__new__, repeat(kind), rows)
