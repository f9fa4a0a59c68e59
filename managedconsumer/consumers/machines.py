"""Builds the membership machine that the options ask for: the classic protocol, or KIP-848's."""

from __future__ import annotations

import logging
from typing import Any, Callable

from managedconsumer import codes
from managedconsumer.compat.membership import accept_assignors
from managedconsumer.config import GroupOptions
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.broker_regex import broker_regex
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.errors import ConfigurationError, error_for_code
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.member import GroupMember
from managedconsumer.subscription_state import INTERNAL_TOPICS
from managedconsumer.values import NamedTuple

log = logging.getLogger(__name__)

AnyMembership = Membership | ConsumerGroupMembership

AUTO, CLASSIC, CONSUMER = "auto", "classic", "consumer"
#: The assignors that run in the broker under KIP-848.
SERVER_ASSIGNORS = ("uniform", "range")


class AssignorChoice(NamedTuple):
    """The choice of ``group_protocol`` and ``membership_protocol``."""

    #: The protocol to begin with; ``auto``: the other one follows where broker or group refuse it.
    protocol: str
    auto: bool
    #: The classic assignors.
    classic: list[Any]
    #: The broker's own assignor by name, for KIP-848 only; None: its default.
    server: str | None

    @classmethod
    def of(cls, options: GroupOptions, chosen: Any) -> AssignorChoice:
        """Return the choice of ``options`` and ``chosen``. Raises ConfigurationError or TypeError for bad assignors."""
        protocol = options.group_protocol
        server = chosen if isinstance(chosen, str) and chosen in SERVER_ASSIGNORS and protocol != CLASSIC else None
        classic = accept_assignors(chosen if server is None else "range")
        local = len(classic) > 1 or not isinstance(classic[0], RangePartitionAssignor)  # range is at both places
        if protocol == CONSUMER and local:
            raise ConfigurationError(
                f"membership_protocol={chosen!r}: with group_protocol='consumer' the broker assigns; it knows "
                f"{' and '.join(map(repr, SERVER_ASSIGNORS))}. group_protocol='classic' has assignors in the client"
            )
        theirs = options.left_to_the_broker()
        if protocol == CONSUMER and theirs:
            log.info("group_protocol='consumer': the broker uses its own settings, not %s", ", ".join(theirs))
        if protocol != AUTO:
            return cls(protocol, False, classic, server)
        if local or theirs:
            return cls(CLASSIC, False, classic, None)
        return cls(CONSUMER, True, classic, server)

    def negotiation(self, protocol: str, rack: str | None) -> Negotiation:
        """Return the negotiation for a machine of ``protocol``."""
        return Negotiation(self.classic, rack, incremental=protocol == CONSUMER)


def build_machine(
    protocol: str,
    engine: Engine,
    options: GroupOptions,
    negotiation: Negotiation,
    choice: AssignorChoice,
) -> AnyMembership:
    """Return a machine for one life of a member. It runs under the member's lock, and takes no other."""
    group, handler = engine.group_id or "", engine.handler
    longest, request_timeout = max(100, options.rebalance_backoff_ms), int(engine.cluster.settings.request_timeout_ms)

    # Without the engine's lock: the subscription and the era are replaced as a whole, never changed.
    def topics() -> list[str]:
        return sorted(engine.subscription.subscription or ())

    def protocols() -> list[tuple[str, bytes]]:
        return negotiation.protocols(topics(), engine.subscription.era.partitions, classic.generation.id)

    config = MembershipConfig(
        group,
        session_timeout_ms=options.session_timeout_ms,
        rebalance_timeout_ms=options.rebalance_timeout_ms,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        request_timeout_ms=request_timeout,
        retry_backoff_max_ms=longest,
        group_instance_id=options.group_instance_id,
        rack=engine.options.client_rack,
        server_assignor=choice.server,
        yields=choice.auto,
    )
    if protocol == CONSUMER:
        config = config._replace(topic_regex=_topic_regex(engine))
        return ConsumerGroupMembership(config, topics, handler.random, handler.now, handler.new_id)
    classic = Membership(config, protocols, handler.random, handler.now)
    return classic


def _topic_regex(engine: Engine) -> str | None:
    """Return the subscribed pattern in RE2, if the broker can match it, too (KIP-848)."""
    with engine.lock:
        pattern = engine.subscription.subscribed_pattern
    if pattern is None:
        return None
    # The broker matches Kafka's internal topics, too.
    internal = any(pattern.match(name) for name in INTERNAL_TOPICS)
    regex = None if internal else broker_regex(pattern)
    if regex is None:
        why = "matches Kafka's own topics too" if internal else "cannot be written in RE2"
        engine.log_fields.tell(log.info, "%r %s: this client alone matches topics", pattern, why)
    return regex


def error_handlers(member: GroupMember | None, link: CoordinatorLink | None) -> dict[int, Callable[[], None]]:
    """Return the handler of each error code of the group APIs (pykafka's table of handlers)."""

    def rejoin(code: int) -> Callable[[], None]:
        return lambda: None if member is None else member.request_rejoin(str(error_for_code(code)))

    def expelled(code: int) -> Callable[[], None]:
        return lambda: None if member is None else member.fence(error_for_code(code), member.generation)

    def coordinator(code: int) -> Callable[[], None]:
        return lambda: None if link is None else link.lost(str(error_for_code(code)))

    handlers = {code: coordinator(code) for code in sorted(codes.COORDINATOR_CHANGES)}
    handlers |= {code: expelled(code) for code in sorted(codes.CLASSIC_EXPELLED | {codes.FENCED_INSTANCE_ID})}
    handlers[codes.REBALANCE_IN_PROGRESS] = rejoin(codes.REBALANCE_IN_PROGRESS)
    return handlers
