"""Our named tuples do what those of ``typing`` do."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from typing import Any, NamedTuple, get_type_hints

import pytest

from managedconsumer import values


class Theirs(NamedTuple):
    """A place."""

    name: str
    size: int = 3
    rest: tuple[int, ...] = ()

    @property
    def double(self) -> int:
        """Twice the size."""
        return self.size * 2


class Ours(values.NamedTuple):
    """A place."""

    name: str
    size: int = 3
    rest: tuple[int, ...] = ()

    @property
    def double(self) -> int:
        """Twice the size."""
        return self.size * 2


BOTH = pytest.mark.parametrize("kind", [Theirs, Ours])


@BOTH
def test_values(kind: Any) -> None:
    made = kind("a", rest=(1,))
    assert made == ("a", 3, (1,)) == kind(name="a", size=3, rest=(1,))
    assert (made.name, made.size, made[2], made.double, len(made)) == ("a", 3, (1,), 6, 3)
    name, *_ = made
    assert name == "a"
    assert hash(made) == hash(("a", 3, (1,)))
    assert repr(made) == f"{kind.__name__}(name='a', size=3, rest=(1,))"
    assert made._asdict() == {"name": "a", "size": 3, "rest": (1,)}
    assert isinstance(made._replace(size=4), kind)
    assert made._replace(size=4) == kind._make(["a", 4, (1,)]) == ("a", 4, (1,))
    assert [copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))] == [made] * 3
    assert type(pickle.loads(pickle.dumps(made))) is kind
    match made:
        case kind(found, size=3):
            assert found == "a"


@BOTH
def test_what_is_wrong(kind: Any) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        kind()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        kind("a", colour=1)
    with pytest.raises(TypeError if sys.version_info >= (3, 13) else ValueError, match="colour"):
        kind("a")._replace(colour=1)
    for name in ("name", "colour"):
        with pytest.raises(AttributeError):
            setattr(kind("a"), name, "b")


def test_what_is_known_of_the_class() -> None:
    for name in ("_fields", "_field_defaults", "__match_args__", "__doc__"):
        assert getattr(Ours, name) == getattr(Theirs, name), name
    assert get_type_hints(Ours) == get_type_hints(Theirs)
    assert list(inspect.signature(Ours).parameters) == list(inspect.signature(Theirs).parameters)
    assert inspect.signature(Ours).parameters["size"].default == 3


def test_a_class_below_another_one() -> None:
    class Narrow(Ours):
        """Has the fields of its base."""

        __slots__ = ()

    assert Narrow("a") == Ours("a")
    assert type(Narrow("a")._replace(size=1)) is Narrow


@BOTH
def test_thousands_are_made_without_a_call_for_each(kind: Any) -> None:
    made = [*values.each(kind, zip("ab", (1, 2), ("x", "y"), strict=True))]
    assert made == [kind("a", 1, "x"), kind("b", 2, "y")]
    assert {type(one) for one in made} == {kind}
