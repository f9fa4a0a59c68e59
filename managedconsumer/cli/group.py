"""``managedconsumer group NAME``: a group's members and progress."""

from __future__ import annotations

import time

import click

from managedconsumer.admin.admin import Admin
from managedconsumer.admin.values import GroupLag
from managedconsumer.cli import _show
from managedconsumer.cli._connection import with_admin

_HEADERS = ("TOPIC", "PARTITION", "COMMITTED", "NEXT", "LAG", "BEHIND", "MEMBER", "HOST")


@click.command("group", short_help="Who is in a group, and how far it is.")
@click.argument("name")
@click.option("--watch", is_flag=True, help="Print a line for each change of members, state or lag, until Ctrl-C.")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds, with --watch.")
@with_admin
@_show.json_option
def command(admin: Admin, name: str, watch: bool, every: float, as_json: bool) -> None:
    """A group: state, protocol and assignor; its partitions, how far they are, and who has them.

    BEHIND is the age of the first message that is not committed.
    """
    found = admin.lag([name])[name]
    if as_json:
        _show.print_json({"lag": found.lag, "seconds": found.seconds, **_show.plain(found)})
    else:
        _print(found)
    before = found
    while watch:
        time.sleep(every)
        found = admin.lag([name], seconds=False)[name]
        for line in changes(before, found):
            _show.say(f"{time.strftime('%H:%M:%S')} {line}")
        before = found


def _print(found: GroupLag) -> None:
    group = found.group
    protocol = f"{group.type} protocol" + (f", assignor {group.assignor}" if group.assignor else "")
    members = "1 member" if len(group.members) == 1 else f"{len(group.members)} members"
    behind = "" if found.seconds is None else f", {_show.seconds(found.seconds)} behind"
    _show.say(f"group {group.name}: {group.state}, {protocol}, {members}, lag {found.lag}{behind}")
    rows = []
    for part in found.partitions:
        who = part.member
        shown = None if who is None else who.instance_id or who.member_id
        place = (part.topic, part.partition, part.committed, part.end, part.lag, _show.seconds(part.seconds))
        rows.append((*place, shown, None if who is None else who.host))
    if rows:
        _show.table(_HEADERS, rows, (1, 2, 3, 4))
    idle = [each for each in group.members if not each.partitions]
    if idle:
        _show.say(f"without partitions: {', '.join(each.instance_id or each.member_id for each in idle)}")


def changes(before: GroupLag, now: GroupLag) -> list[str]:
    lines = []
    old = {each.member_id: each for each in before.group.members}
    new = {each.member_id: each for each in now.group.members}
    if before.group.state != now.group.state:
        lines.append(f"state: {before.group.state} -> {now.group.state}")
    lines += [f"{member} left" for member in old if member not in new]
    lines += [f"{member} joined from {new[member].host}" for member in new if member not in old]
    for member, description in new.items():
        had = set(old[member].partitions) if member in old else set()
        for word, tps in (("got", set(description.partitions) - had), ("gave up", had - set(description.partitions))):
            if tps:
                lines.append(f"{member} {word} {', '.join(f'{tp.topic}-{tp.partition}' for tp in sorted(tps))}")
    if before.lag != now.lag:
        lines.append(f"lag: {before.lag} -> {now.lag}")
    return lines
