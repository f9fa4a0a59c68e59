"""The offsets that a reset of a group writes. Pure."""

from __future__ import annotations

from typing import Collection, Mapping

from managedconsumer.admin.values import GroupDescription, Move
from managedconsumer.errors import ConfigurationError, GroupNotEmpty
from managedconsumer.structs import TopicPartition


def check_idle(group: GroupDescription) -> None:
    """Raise GroupNotEmpty, with the members' names, for a group in use: its next commit would undo the reset."""
    if group.live:
        shown = [f"{each.client_id} at {each.host} ({each.member_id})" for each in group.members[:5]]
        more = [f"{len(group.members) - 5} more"] if len(group.members) > 5 else []
        who = ", ".join([*shown, *more]) or f"its state is {group.state}"
        raise GroupNotEmpty(f"group {group.name!r} is in use: {who}. Stop its members first; then try again")


def plan(
    targets: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, tuple[int, int]],
    committed: Mapping[TopicPartition, int],
) -> tuple[Move, ...]:
    """Each partition's move to its target, limited to the log."""
    moves = []
    for tp, wanted in sorted(targets.items()):
        start, end = ends[tp]
        moves.append(Move(*tp, committed.get(tp), max(start, min(wanted, end)), start, end))
    return tuple(moves)


def shifted(
    committed: Mapping[TopicPartition, int], tps: Collection[TopicPartition], by: int
) -> dict[TopicPartition, int]:
    """The committed offsets moved by ``by`` messages. Raises ConfigurationError for a partition without a commit."""
    missing = sorted(tp for tp in tps if tp not in committed)
    if missing:
        raise ConfigurationError(
            f"nothing is committed for {missing[0].topic}-{missing[0].partition}, so it cannot be shifted: "
            "say where to go, as in to='earliest'"
        )
    return {tp: committed[tp] + by for tp in tps}
