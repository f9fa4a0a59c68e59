"""Bases of frozen values: ``Value`` for those that check what they are given, ``NamedTuple`` for all others.

Neither is a dataclass: the module ``dataclasses`` and each of its classes cost a start of the program a millisecond.
For a type checker ``NamedTuple`` is that of ``typing``, which compiles some source text for each field and each class.
There are sixty of them, a sixth of the import; here each class takes a function that is compiled already.
"""

from __future__ import annotations

import sys
from collections import _tuplegetter  # type: ignore[attr-defined]  # what namedtuple() gives its fields
from itertools import repeat
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Iterable, Iterator, Mapping, TypeVar

_T = TypeVar("_T", bound=tuple[Any, ...])

_make = tuple.__new__
#: The error of the standard library's ``_replace`` for an unknown name; it changed in Python 3.13.
_NO_SUCH_FIELD = TypeError if sys.version_info >= (3, 13) else ValueError
#: ``__new__`` of a class with so many fields; the names of the arguments are exchanged.
_NEW = (
    lambda _cls: _make(_cls),
    lambda _cls, a: _make(_cls, (a,)),
    lambda _cls, a, b: _make(_cls, (a, b)),
    lambda _cls, a, b, c: _make(_cls, (a, b, c)),
    lambda _cls, a, b, c, d: _make(_cls, (a, b, c, d)),
    lambda _cls, a, b, c, d, e: _make(_cls, (a, b, c, d, e)),
    lambda _cls, a, b, c, d, e, f: _make(_cls, (a, b, c, d, e, f)),
    lambda _cls, a, b, c, d, e, f, g: _make(_cls, (a, b, c, d, e, f, g)),
    lambda _cls, a, b, c, d, e, f, g, h: _make(_cls, (a, b, c, d, e, f, g, h)),
    lambda _cls, a, b, c, d, e, f, g, h, i: _make(_cls, (a, b, c, d, e, f, g, h, i)),
    lambda _cls, a, b, c, d, e, f, g, h, i, j: _make(_cls, (a, b, c, d, e, f, g, h, i, j)),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k: _make(_cls, (a, b, c, d, e, f, g, h, i, j, k)),
)


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


class _NamedTupleType(type):
    """Makes a class of its annotations, as ``typing.NamedTuple`` does. At most eleven fields."""

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        types: dict[str, Any] = body.get("__annotations__", {})
        if bases == (tuple,) or "_fields" in vars(bases[0]):  # the base itself, or a class below a finished one
            return super().__new__(mcs, name, bases, body)
        fields = tuple(types)
        given = {field: body.pop(field) for field in fields if field in body}
        if tuple(given) != fields[len(fields) - len(given) :]:
            raise TypeError(f"{name}: a field without a default follows one that has a default")
        code = _NEW[len(fields)].__code__.replace(co_varnames=("_cls", *fields), co_name="__new__")
        new = FunctionType(code, globals(), "__new__", tuple(given.values()))
        new.__annotations__, new.__qualname__ = types, f"{body['__qualname__']}.__new__"
        body |= {field: _tuplegetter(place, "") for place, field in enumerate(fields)}
        body |= {"__slots__": (), "_fields": fields, "__match_args__": fields, "_field_defaults": given, "__new__": new}
        return super().__new__(mcs, name, bases, body)


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class NamedTuple(tuple, metaclass=_NamedTupleType):
        """A frozen tuple whose fields have names, see ``typing.NamedTuple``."""

        __slots__ = ()

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Any:
            return cls(*values)

        def _replace(self, /, **changed: Any) -> Any:
            made = type(self)(*map(changed.pop, self._fields, self))
            if changed:
                raise _NO_SUCH_FIELD(f"{type(self).__name__} has no field {', '.join(changed)}")
            return made

        def _asdict(self) -> Mapping[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({shown})"


def each(kind: type[_T], rows: Iterable[tuple[Any, ...]]) -> Iterator[_T]:
    """Every row as a ``kind`` of ``NamedTuple``, without a call in Python for each. A row has all fields."""
    return map(_make, repeat(kind), rows)
