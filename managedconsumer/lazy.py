"""Names of a package that are loaded when they are first used (PEP 562), so that its import costs nothing."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Callable, Mapping


def lazily(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the names of ``package`` and its ``__getattr__``; ``modules``: their names by module, in one text."""
    homes = {name: home for home, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next look-up is an ordinary one
        return value

    return sorted(homes), load
