"""The common part of all commands: it finds them, and shows their errors."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import click

from managedconsumer import errors as err
from managedconsumer._version import __version__
from managedconsumer.cli import _show
from managedconsumer.cli._codes import INTERRUPTED, NO, UNREACHABLE, USAGE
from managedconsumer.testing import DevBrokerError

#: Errors that say that Kafka cannot be reached, or does not answer.
_UNREACHABLE = (err.NoBrokersAvailableError, err.RequestTimedOut, err.SocketDisconnectedError)


class Commands(click.Group):
    """The modules of :mod:`managedconsumer.cli`; only the given command's module is imported."""

    def __init__(self, names: Sequence[str], load: Callable[[str], ModuleType]) -> None:
        super().__init__(
            "managedconsumer",
            help="A managed, balanced Kafka consumer, and what helps to work with it.",
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        click.version_option(__version__, message=f"managedconsumer {__version__}")(self)
        self._names, self._load = names, load

    def list_commands(self, ctx: click.Context) -> list[str]:  # click's
        return list(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._names:
            return None
        command: click.Command = self._load(cmd_name).command
        return command


def run(commands: click.Group, words: list[str]) -> int:
    """Run the command that ``words`` name; the exit code."""
    try:
        with _warnings():
            code = commands.main(words, prog_name="managedconsumer", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        _show.tell(text.getvalue().rstrip("\n"))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _told("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (| head), and the flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    except _UNREACHABLE as error:
        return _told(error, UNREACHABLE)
    except err.ConfigurationError as error:
        return _told(error, USAGE)
    except (err.KafkaException, DevBrokerError) as error:
        return _told(error, NO)


def _told(what: object, code: int) -> int:
    _show.tell(f"managedconsumer: {what}")
    return code


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """Print warnings on stderr by :mod:`_show`, as all other output."""
    logger = logging.getLogger("managedconsumer")
    if logger.hasHandlers():
        yield
        return
    handler = _Warnings(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            _show.tell(self.format(record))
        except Exception:  # noqa: BLE001 - as in all handlers: a line that cannot be shown must not end the command
            self.handleError(record)
