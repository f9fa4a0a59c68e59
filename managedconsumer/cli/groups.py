"""``managedconsumer groups``: all consumer groups."""

from __future__ import annotations

import click

from managedconsumer.admin.admin import Admin
from managedconsumer.cli import _show
from managedconsumer.cli._connection import with_admin


@click.command("groups", short_help="All groups.")
@click.option("--lag", "timed", is_flag=True, help="Also how far they are behind in time.")
@with_admin
@_show.json_option
def command(admin: Admin, timed: bool, as_json: bool) -> None:
    """All groups: type, state, members, and how many messages they are behind.

    Only groups of consumers have members and a lag here; others (Kafka Connect, share groups) are listed. --lag adds
    the age of the oldest message that is not committed: it reads a message of each partition that is behind.
    """
    listed = admin.groups(lag=True, seconds=timed)
    rows = []
    for group in listed:
        lag = group.lag
        state = group.state or ("" if lag is None else lag.group.state)
        known = (None, None, None) if lag is None else (len(lag.group.members), lag.lag, lag.seconds)
        rows.append((group.name, group.type, state, *known))
    names = ("group", "type", "state", "members", "lag", "seconds")
    if as_json:
        shown = names if timed else names[:-1]
        _show.print_json([dict(zip(shown, row, strict=False)) for row in rows])
    elif timed:
        heads = [*(name.upper() for name in names[:-1]), "BEHIND"]
        _show.table(heads, [(*row[:-1], _show.seconds(row[-1])) for row in rows], (3, 4))
    else:
        _show.table([name.upper() for name in names[:-1]], [row[:-1] for row in rows], (3, 4))
