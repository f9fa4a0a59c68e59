"""``managedconsumer peek TOPIC``: show messages. Joins no group, commits nothing."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import click

from managedconsumer.admin.admin import Admin, Offsets
from managedconsumer.admin.timestamps import parse_moment
from managedconsumer.cli import _messages, _show
from managedconsumer.cli._connection import with_admin
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

_LOOK_EVERY = 0.3


@click.command("peek", short_help="Look at messages.")
@click.argument("topic")
@click.option("-n", "count", type=click.IntRange(1), help="At most so many messages. [default: 10 without --until]")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help="earliest, latest, an offset (-5: the last five of each partition), an ISO 8601 time (UTC), or '2 hours ago'.",
)
@click.option("--until", metavar="WHERE", help="Where to end; as --from. [default: the end of the log as it is now]")
@_show.partitions_option
@click.option("--key", help="Only messages with this key.")
@click.option("--grep", metavar="REGEX", help="Only messages whose value matches somewhere.")
@click.option(
    "-f", "--format", "form", default="text", show_default=True, help="text, json, or kcat's: '%o %k: %s\\n'."
)
@click.option(
    "--raw", is_flag=True, help="With kcat's format: bytes as they are, also those that a terminal takes for commands."
)
@click.option("--follow", is_flag=True, help="Go on with what comes later, until Ctrl-C or -n.")
@with_admin
def command(
    admin: Admin,
    topic: str,
    count: int | None,
    start: str,
    until: str | None,
    partitions: tuple[int, ...],
    key: str | None,
    grep: str | None,
    form: str,
    raw: bool,
    follow: bool,
) -> None:
    """Messages of a topic, the oldest first: partition, offset, time, key, value.

    Exits with 0 also when there is none.
    """
    show, wanted = _format(form, raw), _filter(key, grep)
    if follow and until is not None:
        raise click.UsageError("--follow goes on for ever: it has no --until")
    most = count if count is not None or until is not None or follow else 10
    here = _place(admin, topic, start, partitions)
    end = _place(admin, topic, until or "latest", partitions)
    found: Iterator[Message] = _follow(admin, here, topic) if follow else _read(admin, here, end)
    for message in islice((each for each in found if wanted(each)), most):
        _write(show(message), raw)
        if follow:
            sys.stdout.flush()
    sys.stdout.flush()


def _write(text: str, raw: bool) -> None:
    if raw:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    else:
        sys.stdout.write(text)


def _format(form: str, raw: bool) -> _messages.Format:
    if form in ("text", "json"):
        if raw:
            raise click.UsageError(f"--raw is for kcat's formats, such as -f '%s'; {form} escapes what it has to")
        whole = _messages.line if form == "text" else _messages.as_json
        return lambda message: whole(message) + "\n"
    try:
        return _messages.kcat(form, raw=raw)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from None


def _filter(key: str | None, grep: str | None) -> Callable[[Message], bool]:
    try:
        pattern = None if grep is None else re.compile(grep)
    except re.error as error:
        raise click.BadParameter(f"{grep!r} is no regular expression: {error}", param_hint="--grep") from None

    def wanted(message: Message) -> bool:
        if key is not None and message.partition_key != key.encode():
            return False
        return pattern is None or (message.value is not None and bool(pattern.search(_messages.text(message.value))))

    return wanted


def _place(admin: Admin, topic: str, where: str, partitions: tuple[int, ...]) -> Offsets:
    if re.fullmatch(r"-\d+", where):
        ends = admin.ends(topic, partitions or None)
        return {tp: max(first, end + int(where)) for tp, (first, end) in ends.items()}
    return admin.offsets_at(topic, parse_moment(where, time.time()), partitions or None)


def _read(admin: Admin, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Iterator[Message]:
    ranges = {tp: (first, end[tp]) for tp, first in start.items()}
    return admin.read(ranges, lambda error: _show.tell(f"managedconsumer: passed over: {error}"))


def _follow(admin: Admin, start: Offsets, topic: str) -> Iterator[Message]:
    here = dict(start)
    numbers = [tp.partition for tp in start]
    while True:
        ends = {tp: end for tp, (_, end) in admin.ends(topic, numbers).items()}
        yield from _read(admin, here, ends)
        here = {tp: max(offset, ends[tp]) for tp, offset in here.items()}
        time.sleep(_LOOK_EVERY)
