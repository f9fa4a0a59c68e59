"""``managedconsumer groups``: all consumer groups."""

from __future__ import annotations

from pathlib import Path

import click

from managedconsumer.cli import _show
from managedconsumer.cli._connection import connected, connection_options


@click.command("groups", short_help="All groups.")
@connection_options
@_show.json_option
def command(bootstrap: str | None, config: Path | None, as_json: bool) -> None:
    """All groups: type, state, members, and how many messages they are behind.

    Only groups of consumers have members and a lag here; others (Kafka Connect, share groups) are listed.
    """
    with connected(bootstrap, config) as (admin, _):
        listed = admin.groups()
        known = [group.name for group in listed if _is_consumers(group.type, group.protocol_type)]
        lags = admin.lag_of_existing(known)
    rows = []
    for group in listed:
        lag = lags.get(group.name)
        members = None if lag is None else len(lag.group.members)
        state = group.state or (lag.group.state if lag is not None else "")
        rows.append((group.name, group.type, state, members, None if lag is None else lag.lag))
    names = ("group", "type", "state", "members", "lag")
    if as_json:
        _show.print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        _show.table([name.upper() for name in names], rows, (3, 4))


def _is_consumers(kind: str, protocol_type: str) -> bool:
    return kind == "consumer" or (kind == "classic" and protocol_type in ("consumer", ""))
