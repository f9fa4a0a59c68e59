"""What a format of values is, and what a decoder does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from managedconsumer.errors import MissingPackageError


class Decoder(Protocol):
    """Values to an Arrow column."""

    def type(self) -> Any:
        """The column's ``pyarrow.DataType``. Raises ConfigurationError for a schema that cannot be a column."""

    def array(self, values: list[bytes | None]) -> Any:
        """An array of that type; None stays None. Raises any Exception if one of the values is bad."""


@dataclass(frozen=True)
class ValueFormat:
    """A format with its schema: all that a task needs.

    ``schema``: the text, or for Protobuf the descriptor set. ``message``: Protobuf's message by its full name.
    ``registry``: a schema registry's URL; then each value begins with the id of the schema that it was written with.
    """

    name: str
    schema: bytes = field(repr=False)
    message: str = ""
    # May hold a password.
    registry: str = field(default="", repr=False)


def missing(package: str, error: ImportError) -> MissingPackageError:
    """The error for a package that is not installed."""
    return MissingPackageError(
        f"typed values need {package} ({error}): pip install '{package}' on the driver and the executors (what the "
        "extra 'managedconsumer[typed]' brings)"
    )
