"""Tables of tests: a few telling cells are fast, and CI runs all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def table(*axes: Iterable[Any], fast: Callable[..., bool]) -> list[Any]:
    """Each combination of values as a parameter; those that ``fast`` does not choose are marked ``slow``."""
    return [
        pytest.param(*cell, marks=() if fast(*cell) else pytest.mark.slow)
        for cell in itertools.product(*(list(axis) for axis in axes))
    ]
