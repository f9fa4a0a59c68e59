"""The assignors that classic members offer: which join a group takes, and which assignor it chooses. Pure.

Source: Kafka's ``ClassicGroup`` (``supportsProtocols``, ``selectProtocol``).
"""

from __future__ import annotations

from typing import Collection

from managedconsumer.testing.memory.member import Body, MemberEntry, protocols_of


def acceptable(body: Body, kind: str | None, members: Collection[MemberEntry]) -> bool:
    """Whether a group of ``kind`` takes this join: it has an assignor in common with all members.

    The member itself counts, too, as it does in Kafka: alone in a group it cannot come back with another assignor.
    """
    names = {name for name, _ in protocols_of(body)}
    asked = body.get("protocol_type", kind)
    if not members:
        return bool(names) and asked != ""
    common = names.intersection(*({name for name, _ in member.protocols} for member in members))
    return asked == kind and bool(common)


def vote(members: Collection[MemberEntry]) -> str:
    """The assignor that most members like best, of those that all of them know."""
    common = set.intersection(*({name for name, _ in member.protocols} for member in members))
    votes = [next(name for name, _ in member.protocols if name in common) for member in members]
    return max(sorted(common), key=votes.count)
