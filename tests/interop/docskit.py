"""The programs of a page of docs/, for tests that run them, and what they run on."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from managedconsumer.testing import MemoryBroker
from tests.pages import text_of

#: How many messages each of the two partitions of "orders" has.
COUNT = 5


def programs(page: str, heading: str, bootstrap: str = "localhost:9092") -> list[str]:
    """The Python programs below a heading of ``page``, for the broker at ``bootstrap``."""
    below = re.split(rf"(?m)^{re.escape(heading)}\n[=-]{{4,}}\n", text_of(page), maxsplit=1)[1]
    section = re.split(r"\n[^\n]+\n-{4,}\n", below)[0]
    blocks = section.split(".. code-block:: python\n")[1:]
    return [textwrap.dedent(re.split(r"\n\S", block)[0]).replace("localhost:9092", bootstrap) for block in blocks]


def headings(page: str) -> list[str]:
    """Those with a program."""
    found = re.findall(r"\n([^\n]+)\n-{4,}\n", text_of(page))
    return [heading for heading in found if programs(page, heading)]


@contextmanager
def orders() -> Iterator[MemoryBroker]:
    """A broker with messages in "orders"."""
    with MemoryBroker({"orders": 2}) as made:
        for partition in range(2):
            made.produce("orders", [b"%d" % number for number in range(COUNT)], partition=partition)
        yield made


def buffered() -> dict[str, str]:
    """The environment for several processes that print: unbuffered, lines of one come in pieces between the others'."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
