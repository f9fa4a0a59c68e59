"""The group protocol of a query: the classic one with its assignors, or that of KIP-848, where the broker assigns."""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.coordinator import assignors
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.spark.options import CONSUMER, SourceOptions

_RANGE = "RangePartitionAssignor"


class How(NamedTuple):
    """The group's protocol, and the assignors to offer, best first (KIP-848: none)."""

    protocol: str
    assignor_names: tuple[str, ...]

    @classmethod
    def of(cls, options: SourceOptions) -> How:
        return cls(options.group_protocol, tuple(options.assignor_names()))

    def instead(self, options: SourceOptions, error: err.ProtocolClientError) -> tuple[How, str] | None:
        """Return what to try after the group refused this with ``error``, and the reason; None: nothing."""
        classic = options.group_protocol
        if self.protocol == CONSUMER and isinstance(error, (err.UnsupportedVersion, err.UnsupportedBrokerError)):
            return self._replace(protocol="classic"), "the broker does not have KIP-848, so the query goes on without"
        refused = getattr(error, "ERROR_CODE", None) == codes.INCONSISTENT_GROUP_PROTOCOL
        if refused and self.protocol == classic and not options.assignor_chosen and self.assignor_names != (_RANGE,):
            return self._replace(assignor_names=(_RANGE,)), (
                "its members do not know cooperative-sticky, the default of a query, so it goes on with range: the "
                "group stops for each rebalance"
            )
        return None

    def negotiation(self, options: SourceOptions) -> Negotiation:
        offered = [getattr(assignors, name)() for name in self.assignor_names]
        return Negotiation(offered, options.kafka.get("client.rack") or None, incremental=self.protocol == CONSUMER)

    def membership(self, options: SourceOptions, query: str) -> MembershipConfig:
        """Return the membership's settings; a classic member is static, by the name of its checkpoint."""
        config = options.membership()
        if not query or self.protocol == CONSUMER or "group.instance.id" in options.kafka:
            return config
        return config._replace(group_instance_id=f"managedconsumer-spark-{query}", static_leaves=True)

    def machine(
        self,
        config: MembershipConfig,
        options: SourceOptions,
        handler: Handler,
        protocols: Callable[[], Sequence[tuple[str, bytes]]],
        topics: Callable[[], Sequence[str]],
    ) -> Membership | ConsumerGroupMembership:
        if self.protocol != CONSUMER:
            return Membership(config, protocols, handler.random, handler.now)
        config = config._replace(
            rack=options.kafka.get("client.rack") or None,
            server_assignor=options.kafka.get("group.remote.assignor") or None,
        )
        return ConsumerGroupMembership(config, topics, handler.random, handler.now, handler.new_id)
