"""``python -m tests.observe.picture`` makes the README's picture: a group of three, recorded on a broker in memory.

docs/timeline.jsonl is the recording, docs/timeline.svg what ``managedconsumer timeline`` draws of it.
"""

from __future__ import annotations

import time
from pathlib import Path

from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer.observe import drawing
from managedconsumer.observe.recorder import Recorder
from managedconsumer.testing import MemoryBroker
from tests.waiting import until

DOCS = Path(__file__).parents[2] / "docs"
RECORDING, PICTURE = DOCS / "timeline.jsonl", DOCS / "timeline.svg"
PARTITIONS = 6


def draw(recording: str) -> str:
    """The picture of a recording, as text."""
    recorder = Recorder()
    recorder.read(recording.splitlines())
    return drawing.svg(recorder.timeline()) + "\n"


def record() -> str:
    """Two members come to the first one, one of them is expelled and comes back, the first one goes, then all."""
    recorder = Recorder()
    members: list[ManagedBalancedConsumer] = []
    with MemoryBroker({"orders": PARTITIONS}) as broker:

        def come(name: str) -> None:
            client = KafkaClient(broker.bootstrap, client_id=name)
            made = ManagedBalancedConsumer(
                "orders", client, "shop", heartbeat_interval_ms=100, consumer_timeout_ms=0, auto_start=False
            )
            recorder.watch(made)
            made.start()
            members.append(made)
            settle()

        def settle() -> None:
            def balanced() -> bool:
                for member in members:
                    member.consume()
                held = [partition for member in members for partition in member.partitions]
                return sorted(held) == list(range(PARTITIONS)) and all(member.partitions for member in members)

            until(balanced)
            time.sleep(1)  # a stretch of quiet, for the eye

        for number in range(3):
            come(f"worker-{number + 1}")
        lost = members[1].consumer_id.decode()
        broker.evict("shop", lost)
        until(lambda: members[0].consume() or members[1].consume() or members[1].consumer_id.decode() != lost)
        settle()
        members.pop(0).stop()
        settle()
        for member in members:
            member.stop()
    return recorder.to_json_lines()


if __name__ == "__main__":
    RECORDING.write_text(record(), encoding="utf-8")
    PICTURE.write_text(draw(RECORDING.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PICTURE} is made")
