"""The command ``managedconsumer``.

A sub-command is a module of this package whose name does not start with an underscore; its ``command`` is a
:class:`click.Command`. Only the module of the given command is imported.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from managedconsumer.cli._codes import USAGE


def command_names() -> list[str]:
    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def load(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. Errors that a user can mend are shown as one text, without a trace."""
    try:
        # What these need is not installed everywhere.
        from managedconsumer.cli import _frame

        load("_show")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("click", "rich"):
            raise
        text = f"managedconsumer: the commands need the package {package}: pip install 'managedconsumer[cli]'"
        print(text, file=sys.stderr)
        return USAGE
    return _frame.run(_frame.Commands(command_names(), load), list(sys.argv[1:] if argv is None else argv))
