"""Electing a leader among processes, with nothing but Kafka: a group of a protocol type of its own.

Every process that runs this joins the group; the one that Kafka makes the group's leader works, the others wait. When
it ends or dies, another takes over (at once, or after the session timeout).

    python leader_election.py localhost:9092 my-service
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Mapping, Sequence

from managedconsumer import KafkaClient
from managedconsumer.coordinator.base import BaseCoordinator


class LeaderElection(BaseCoordinator):
    """One candidate. ``leader`` is the elected one's name; ``epoch`` rises with every election and can fence writes."""

    def __init__(self, client: Any, group_id: str, name: str, **configs: Any) -> None:
        super().__init__(client, None, group_id=group_id, **configs)
        self.name = name
        self.leader: str | None = None
        self.epoch = -1

    @property
    def leads(self) -> bool:
        """True while this candidate is the leader, as far as it knows: heartbeats tell it when it has been expelled."""
        return self.leader == self.name and not self.need_rejoin()

    def protocol_type(self) -> str:
        return "work"

    def group_protocols(self) -> Sequence[tuple[str, bytes]]:
        return [("election", json.dumps({"name": self.name}).encode())]

    def _perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> Mapping[str, bytes]:
        names = {member: json.loads(metadata)["name"] for member, metadata in members}
        return {member: json.dumps({"leader": names[leader_id]}).encode() for member in names}

    def _on_join_prepare(self, generation: int, member_id: str) -> None:
        self.leader = None  # nobody leads while an election is on

    def _on_join_complete(
        self, generation: int, member_id: str, protocol: str | None, member_assignment_bytes: bytes
    ) -> None:
        self.leader, self.epoch = json.loads(member_assignment_bytes)["leader"], generation

    def _on_membership_lost(self, error: BaseException | None) -> None:
        self.leader = None


def main() -> None:
    """Take part until interrupted."""
    hosts, group = sys.argv[1:3]
    election = LeaderElection(
        KafkaClient(hosts), group, f"{os.uname().nodename}-{os.getpid()}", session_timeout_ms=10000
    )
    try:
        while True:
            election.ensure_active_group()
            print(f"epoch {election.epoch}: {election.leader} leads" + (", that is me" if election.leads else ""))
            time.sleep(1)
    except KeyboardInterrupt:
        election.close()


if __name__ == "__main__":
    main()
