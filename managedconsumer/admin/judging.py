"""Judge the answers of brokers for a user who wants to consume. Pure."""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping

from managedconsumer.admin.timestamps import iso
from managedconsumer.admin.values import Finding, GroupLag, TopicDescription, note, ok, wrong
from managedconsumer.wire.protocol import schemas, versions
from managedconsumer.wire.protocol.api import Api

#: The APIs that every consumer needs, that group members need, and those of later releases with their use.
_BASIC = (schemas.METADATA, schemas.FETCH, schemas.LIST_OFFSETS, schemas.FIND_COORDINATOR)
_GROUP = (schemas.JOIN_GROUP, schemas.SYNC_GROUP, schemas.HEARTBEAT, schemas.OFFSET_COMMIT, schemas.OFFSET_FETCH)
_EXTRA: tuple[tuple[Api, int, str], ...] = (
    (schemas.FETCH, 13, "topic ids in fetches (KIP-516, Kafka 3.1)"),
    (schemas.JOIN_GROUP, 5, "static members (KIP-345, Kafka 2.3)"),
    (schemas.CONSUMER_GROUP_HEARTBEAT, 0, "group_protocol='consumer' (KIP-848, Kafka 4.0)"),
)
#: Clocks of producers and of this machine may differ by so many seconds without a note.
_SKEW = 5.0


def protocol(subject: str, ranges: versions.Ranges) -> Iterator[Finding]:
    """Report which protocol versions one broker and this client have in common."""
    missing = [api.name for api in (*_BASIC, *_GROUP) if not versions.supports(api, ranges)]
    if missing:
        yield wrong(
            subject,
            f"it has no version of {', '.join(missing)} in common with this client",
            f"Kafka {versions.OLDEST_BROKER} or newer is needed",
        )
        return
    lacking = [text for api, least, text in _EXTRA if not versions.supports(api, ranges, least)]
    fetch = ranges[schemas.FETCH.key]
    shown = f"its versions fit (Fetch {fetch[0]} to {fetch[1]})"
    yield ok(subject, shown + (f"; it lacks {', '.join(lacking)}" if lacking else ""))


def topic(found: TopicDescription, now: float) -> Iterator[Finding]:
    """Judge a topic's partitions; ``now`` is the wall clock in seconds."""
    subject = f"topic {found.name}"
    leaderless = [str(part.partition) for part in found.partitions if part.leader < 0]
    if leaderless:
        text = f"partition {', '.join(leaderless)} has no leader: it cannot be read now"
        yield wrong(subject, text, "look at the brokers that have its replicas")
    behind = [str(part.partition) for part in found.partitions if len(part.in_sync) < len(part.replicas)]
    if behind:
        yield note(subject, f"partition {', '.join(behind)}: not all replicas are in sync")
    newest = max((part.newest for part in found.partitions if part.newest is not None), default=None)
    if newest is not None and newest / 1000.0 > now + _SKEW:
        yield note(
            subject,
            f"its newest message is of {iso(newest)}, {newest / 1000.0 - now:.0f} s from now",
            "the clock of a producer or of this machine is wrong; look-ups by time and retention go by it",
        )
    messages = sum(part.end - part.start for part in found.partitions)
    if not leaderless:
        yield ok(subject, f"{len(found.partitions)} partitions with {messages} offsets")


def group(found: GroupLag) -> Iterator[Finding]:
    """Judge a group: its members, and whether its committed offsets can still be read."""
    description = found.group
    subject = f"group {description.name}"
    members = [f"{each.instance_id or each.client_id} at {each.host}" for each in description.members]
    who = f"with {len(members)}: {', '.join(members[:5])}{', ...' if len(members) > 5 else ''}" if members else ""
    yield ok(subject, f"{description.state}, {description.type} protocol {who}".rstrip())
    idle = [each for each in description.members if not each.partitions]
    if idle and description.state == "Stable":
        yield note(subject, f"{len(idle)} of {len(members)} members have no partition: there are not enough of them")
    for part in found.partitions:
        name = f"{part.topic}-{part.partition}"
        if part.committed is None:
            continue
        if part.committed < part.start:
            yield wrong(
                subject,
                f"{name}: offset {part.committed} is committed and the log begins at {part.start}: retention has "
                f"deleted {part.start - part.committed} offsets that the group has not read",
                "consume faster, or keep messages for longer (retention.ms); auto_offset_reset says where it goes on",
            )
        elif part.committed > part.end:
            yield wrong(
                subject,
                f"{name}: offset {part.committed} is committed and the log ends at {part.end}: it was made anew, "
                "or its log was truncated",
                f"managedconsumer reset {description.name} {part.topic} --to earliest -p {part.partition}",
            )
    yield ok(subject, f"lag {found.lag} over {len(found.partitions)} partitions")


def worst(findings: Iterable[Finding]) -> str:
    order: Mapping[str, int] = {"ok": 0, "note": 1, "wrong": 2}
    return max((each.level for each in findings), key=order.__getitem__, default="ok")
