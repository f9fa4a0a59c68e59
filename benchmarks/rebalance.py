"""How long a partition gets nothing while a member joins, leaves or is killed: ours beside other clients, in one run.

::

    python benchmarks/rebalance.py --quick        # about two minutes
    python benchmarks/rebalance.py --docs docs/explanation/performance.rst

For each protocol the groups of all clients read one topic of twelve partitions side by side, into which 400 messages a
second go. A round: a fourth member joins, the group's first leaves cleanly, another joins, the first is killed with -9.
Once with timeouts and fetches tuned alike, once with each client's own defaults.

*kept*: the longest time between two messages of a partition that a survivor had before and after, 30 ms of pace taken
off. *any*: the same over all partitions, whoever got the messages. *quiet*: the same in the calm before, when nothing
happens: what the machine itself does. *twice*: messages that were handed out again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import rebalance_report as reporting  # noqa: E402
import results  # noqa: E402
from groups import PARTITIONS, Group, Outcome, Pacer, judge  # noqa: E402
from machine import refuse_the_twin  # noqa: E402

from managedconsumer.testing.kafka.devbroker import DevBroker  # noqa: E402

CLIENTS = ("managedconsumer", "confluent", "kafka-python")
PROTOCOLS = ("range", "cooperative-sticky", "consumer")
#: KIP-848 is not in these.
_CLASSIC_ONLY = frozenset({"kafka-python"})
_SESSION_MS, _HEARTBEAT_MS, _FETCH_WAIT_MS = 3500, 1000, 100
_SIGNALS = {"leave": signal.SIGTERM, "kill": signal.SIGKILL}
#: Seconds without an event before the next one, and between the same event of two groups.
_CALM, _STAGGER = 1.7, 0.25
_PATIENCE = 40.0


@dataclass(frozen=True)
class Setting:
    """A set of timeouts; ``interval``: seconds between heartbeats, by protocol."""

    name: str
    broker: dict[str, int]
    arguments: tuple[str, ...]
    interval: dict[str, float]
    events: tuple[str, ...]


TUNED = Setting(
    "tuned alike",
    {"group.consumer.session.timeout.ms": _SESSION_MS, "group.consumer.heartbeat.interval.ms": _HEARTBEAT_MS},
    tuple(
        f"--{name}={ms}" for name, ms in (("session", _SESSION_MS), ("beat", _HEARTBEAT_MS), ("fetch", _FETCH_WAIT_MS))
    ),
    dict.fromkeys(PROTOCOLS, _HEARTBEAT_MS / 1000),
    ("join", "leave", "join", "kill"),
)
#: Nobody waits for sessions of 45 seconds here.
DEFAULTS = Setting(
    "defaults",
    {"group.consumer.session.timeout.ms": 45000, "group.consumer.heartbeat.interval.ms": 5000},
    (),
    {"range": 3.0, "cooperative-sticky": 3.0, "consumer": 5.0},
    ("join", "leave"),
)


@dataclass
class Trial:
    """The groups of one protocol under one setting."""

    setting: Setting
    protocol: str
    rounds: int
    found: dict[reporting.Key, list[Outcome]]
    problems: list[str]
    groups: list[Group] = field(default_factory=list)

    def run(self, broker: DevBroker, clients: list[str]) -> None:
        """All rounds."""
        topic = broker.create_topic(f"rebalance-{uuid.uuid4().hex[:8]}", PARTITIONS)
        arguments = ["--protocol", self.protocol, "--bootstrap", broker.bootstrap, "--topic", topic]
        pacer = Pacer(broker.bootstrap, topic)
        with tempfile.TemporaryDirectory(prefix="rebalance-") as home:
            self.groups = [Group(client, [*arguments, *self.setting.arguments], Path(home)) for client in clients]
            pacer.start()
            try:
                self._go(pacer)
            finally:
                for group in self.groups:
                    group.end()
                pacer.stop()
                broker.delete_topic(topic)

    def _go(self, pacer: Pacer) -> None:
        began = time.monotonic()
        for group in self.groups:
            for number in [group.reserve() for _ in range(3)]:
                group.admit(number)
        self._settle(dict.fromkeys(self.groups, began))
        events = self.setting.events
        for turn in range(self.rounds):
            for place, event in enumerate(events):
                total = self.rounds * events.count(event)
                done = turn * events.count(event) + events[:place].count(event)
                self._event(event, (done + 0.5) / total, turn)
            what = f"{self.setting.name}, {self.protocol}: round {turn + 1} of {self.rounds}"
            print(f"{what}, load {os.getloadavg()[0]:.1f}, messages {pacer.late * 1000:.0f} ms late", flush=True)
            pacer.late = 0.0

    def _event(self, event: str, phase: float, turn: int) -> None:
        """In each group at the same phase of its heartbeats, one after the other; the order changes by round."""
        order = [*self.groups[turn % len(self.groups) :], *self.groups[: turn % len(self.groups)]]
        newcomers = {group: group.reserve() for group in order} if event == "join" else {}
        interval = self.setting.interval[self.protocol]
        moments: dict[Group, float] = {}
        for group in order:
            after = max(moments.values(), default=0.0) + _STAGGER
            moments[group] = group.next_moment(_CALM, interval, phase, after)
        before: dict[Group, set[int]] = {}
        for group, moment in moments.items():
            time.sleep(max(0.0, moment - time.monotonic()))
            before[group], moments[group] = set(group.alive), time.monotonic()
            if event == "join":
                group.admit(newcomers[group])
            else:
                group.dismiss(_SIGNALS[event])
        calm = {group: group.settled_at for group in order}
        for group in self._settle(moments):
            outcome = judge(
                group.deliveries(), moments[group], time.monotonic(), calm[group], before[group] & group.alive
            )
            self.found.setdefault((self.setting.name, self.protocol, event, group.client), []).append(outcome)

    def _settle(self, began: dict[Group, float]) -> list[Group]:
        """Wait for all groups; one that does not settle takes no further part."""
        for group, at in began.items():
            try:
                group.wait_settled(at, _PATIENCE)
            except RuntimeError as error:
                self.problems.append(f"{group.client} {self.protocol}, {self.setting.name}: {error}")
                print(self.problems[-1], flush=True)
                self.groups.remove(group)
                group.end()
        return [group for group in began if group in self.groups]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds, nothing at defaults")
    parser.add_argument("--rounds", type=int, help="default 5, and 2 at defaults, which take long")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="separated by commas")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS), help="separated by commas")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument(
        "--docs",
        type=Path,
        help="the page that includes figures/rebalance_shown.txt; that file and figures/rebalance.txt are written",
    )
    options = parser.parse_args()
    refuse_the_twin()
    rounds = options.rounds or (2 if options.quick else 5)
    clients = [client for client in CLIENTS if client in options.clients.split(",")]
    protocols = [protocol for protocol in PROTOCOLS if protocol in options.protocols.split(",")]
    found: dict[reporting.Key, list[Outcome]] = {}
    problems: list[str] = []
    started, loads = time.monotonic(), [os.getloadavg()[0]]
    for setting, count in [(TUNED, rounds), *([] if options.quick else [(DEFAULTS, max(1, rounds * 2 // 5))])]:
        with DevBroker(properties=setting.broker) as broker:
            for protocol in protocols:
                able = [c for c in clients if protocol != "consumer" or c not in _CLASSIC_ONLY]
                Trial(setting, protocol, count, found, problems).run(broker, able)
                loads.append(os.getloadavg()[0])
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    minutes = (time.monotonic() - started) / 60
    head = (
        f"{when}: {os.cpu_count()} CPUs, {rounds} rounds in {minutes:.1f} minutes, load average {loads[0]:.1f} before, "
        f"at most {max(loads):.1f} while it ran. {reporting.versions(clients)}."
    )
    beats = {(setting.name, p): s * 1000 for setting in (TUNED, DEFAULTS) for p, s in setting.interval.items()}
    text = "\n\n".join([head, reporting.report(found, beats), *(f"* {problem}" for problem in problems)])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rebalance.rst").write_text(text + "\n", encoding="utf-8")
    facts = [
        {"setting": s, "protocol": p, "event": e, "client": c, "outcomes": [asdict(outcome) for outcome in each]}
        for (s, p, e, c), each in found.items()
    ]
    results.save_json(
        options.out / "rebalance.json", {"when": when, "loads": loads, "problems": problems, "rows": facts}
    )
    if options.docs is not None:
        shown = "\n\n".join([head, reporting.summary(found, beats)])
        results.publish(options.docs, "rebalance", shown, text)
    print(f"\n{text}\n\nwritten to {options.out}")


if __name__ == "__main__":
    main()
