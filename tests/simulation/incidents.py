"""The incidents of a simulation: to members, brokers, connections, topics and their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from managedconsumer.structs import TopicPartition
from tests.simulation.program import Program

if TYPE_CHECKING:
    from tests.simulation.simulate import World

#: Those that do not need a member.
_TO_BROKERS = frozenset({"coordinator", "leaders", "node", "partitions", "protocol", "topic"})


class Incidents:
    """Lets things happen, now and later."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._producers = 0
        #: How many are still on their way.
        self.to_come = 0

    def later(self, delay: float, call: Callable[..., Any], *args: Any) -> None:
        """Do it in a while; the group counts as settled after that only."""
        self.to_come += 1

        def happen() -> None:
            self.to_come -= 1
            call(*args)

        self._world.kernel.after(delay, happen)

    def happen(self, kind: str, number: int) -> None:
        """One incident of the plan; ``number`` says whom it happens to."""
        world, kernel = self._world, self._world.kernel
        live = [program for program in world.witness.programs if program.running]
        if kind == "start" or (not live and kind not in _TO_BROKERS):
            if len(live) < 5:
                world.start_program()
            return
        target = live[number % len(live)] if live else None
        later = kernel.random.uniform(0.2, 2.5) * world.plan.session
        world.note("world", f"{kind} {target.name if target else ''}")
        if kind == "coordinator":
            world.brokers.move_coordinator(kernel.random.choice((0.0, 0.5)))
        elif kind == "leaders":
            world.brokers.move_leaders()
        elif kind == "protocol":
            world.brokers.speaks_modern = not world.brokers.speaks_modern
        elif kind == "node":
            node = world.brokers.nodes[number % len(world.brokers.nodes)]
            world.network.node_down(node)
            self.later(later, world.network.node_up, node)
        elif kind == "partitions":
            self._add_partition(number)
        elif kind == "topic":
            world.brokers.add_partitions(f"t{number + 10}", 1)
            self.later(0.5, self.produce, TopicPartition(f"t{number + 10}", 0), 3)
        elif target is not None:
            self._happen_to(target, kind, later)

    def _happen_to(self, target: Program, kind: str, later: float) -> None:
        world = self._world
        if kind in ("stop", "restart"):
            if world.plan.signals and kind == "stop":
                target.signal_due = True
            else:
                target.ask(kind)
        elif kind == "stop elsewhere":
            target.stop_elsewhere()
        elif kind == "kill":
            target.kill()
            if world.kernel.random.random() < 0.7:
                self.later(later, world.start_program, target.instance)
        elif kind == "migrate":
            target.ask("stop")
            self.later(later, world.start_program, target.instance)
        elif kind == "freeze":
            target.process.freeze()
            self.later(later, target.process.thaw)
        elif kind == "twin":
            world.start_program(target.instance)
        elif kind == "reset connections":
            for connection in [c for c in world.network.connections if c.process is target.process]:
                connection.close()
        elif kind == "silence":
            for connection in [c for c in world.network.connections if c.process is target.process]:
                connection.silent = True
        elif kind == "pause":
            target.pause(later)
            self.later(later + 0.1, lambda: None)

    def _add_partition(self, number: int) -> None:
        world = self._world
        topic = sorted(world.plan.topics)[number % len(world.plan.topics)]
        world.brokers.add_partitions(topic, 1)
        added = [tp for tp in world.brokers.logs if tp.topic == topic][-1]
        self.later(0.5, self.produce, added, 3)

    def produce(self, tp: TopicPartition, count: int) -> None:
        """``count`` records, of whatever kind the plan allows."""
        brokers, plan, random = self._world.brokers, self._world.plan, self._world.kernel.random
        if plan.damage and random.random() < plan.damage:
            sound = random.choice((None, random.randrange(count)))
            brokers.change(tp, lambda log: log.append_damaged(count, sound))
        elif plan.transactions and random.random() < plan.transactions:
            self._producers += 1
            producer, commit = self._producers, random.random() < 0.5
            brokers.change(tp, lambda log: log.append(count, producer))
            self.later(
                random.uniform(0.0, 1.5), brokers.change, tp, lambda log: log.finish_transaction(producer, commit)
            )
        else:
            brokers.append(tp, count)
