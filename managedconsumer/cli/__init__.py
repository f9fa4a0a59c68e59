"""The command ``managedconsumer``.

A sub-command is a module of this package whose name does not start with an underscore.  It has ``HELP`` (a line),
``configure(parser)`` (adds its arguments) and ``run(arguments) -> int`` (the exit code).  Only the module that is
asked for is imported.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from managedconsumer._version import __version__

INTERRUPTED = 130  # what a shell expects after Ctrl-C


class Command(Protocol):
    """What a module of this package must have."""

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does it; the exit code."""


def command_names() -> list[str]:
    """All sub-commands, as they are typed."""
    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def _load(name: str) -> Command:
    return cast("Command", importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="managedconsumer", description="A managed, balanced Kafka consumer, and what helps to work with it."
    )
    parser.add_argument("--version", action="version", version=f"managedconsumer {__version__}")
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    names = command_names()
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name in [asked] if asked in names else names:
        module = _load(name)
        sub = choices.add_parser(name, help=module.HELP, description=module.HELP)
        module.configure(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; errors that a user can do something about are one text, no trace."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser(words).parse_args(words)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("managedconsumer: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (| head); nothing more can be said, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _expected() as error:
        print(f"managedconsumer: {error}", file=sys.stderr)
        return 1


def _expected() -> tuple[type[Exception], ...]:
    from managedconsumer.errors import KafkaException
    from managedconsumer.testing import DevBrokerError

    return (KafkaException, DevBrokerError)
