"""The exit codes of the commands."""

from __future__ import annotations

from typing import Final

#: The answer is no, or something went wrong that the text explains.
NO: Final = 1
#: Wrong usage: an option or an argument.
USAGE: Final = 2
#: Kafka cannot be reached, or does not answer.
UNREACHABLE: Final = 3
#: The exit code that a shell expects after Ctrl-C.
INTERRUPTED: Final = 130
