"""One life of a group member: what belongs together from the first join to the leave, and is replaced together."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Callable

from managedconsumer import errors as err
from managedconsumer.config import GroupOptions
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.group_machine import build_machine
from managedconsumer.group_owner import GroupOwner
from managedconsumer.runtime.engine import Engine
from managedconsumer.runtime.member import MEMBERSHIP, GroupMember
from managedconsumer.runtime.primitives import Worker
from managedconsumer.runtime.starting import StartPatience
from managedconsumer.runtime.watchdog import ProcessingWatchdog
from managedconsumer.wire import schemas

log = logging.getLogger(__name__)

# How long (ms) the coordinator may take to say what the group uses.
_DESCRIBE_MS = 2000


class GroupLife:
    """The machine, the owner, the driver and the worker of one membership.

    A consumer has one at a time. ``start()`` makes it, and so does the fall-back to the classic protocol: the new life
    takes the place of the old one in one step, so nobody sees the parts of two lives. Read it anew in each turn of a
    loop.
    """

    def __init__(
        self,
        protocol: str,
        engine: Engine,
        options: GroupOptions,
        negotiation: Negotiation,
        server_assignor: str | None,
        owner: GroupOwner,
    ) -> None:
        if engine.link is None:
            raise err.IllegalStateError("a managed consumer needs a group")
        self.protocol = protocol
        self.engine = engine
        self.owner = owner
        self.machine = build_machine(
            protocol, engine, options, negotiation, server_assignor, lambda: self.machine.generation
        )
        self.member = owner.member = GroupMember(self.machine, engine.link, engine.handler, owner)
        self.member.on_death = engine.fail
        self.watchdog = ProcessingWatchdog(engine, options.max_processing_ms)
        self.worker: Worker | None = None

    def start_worker(self, consumer: weakref.ref[Any]) -> None:
        """Start the membership worker. It holds its consumer only while it works."""
        self.worker = self.engine.handler.spawn("membership", _work, consumer, self)


def wait_for_first_assignment(current: Callable[[], GroupLife | None], engine: Engine, patience: StartPatience) -> None:
    """Block until the member has its share, or a callback waits for the thread that consumes.

    ``current`` is asked in each turn: a fall-back to the classic protocol replaces the life. Raises what has ended the
    consumer, ConsumerStoppedException, or the trouble that has outlasted ``patience``.
    """
    with engine.lock:
        while (life := current()) is not None and not (life.owner.assignments or engine.tasks_waiting):
            if engine.error is not None:
                raise engine.error
            if engine.closing or engine.stopping or engine.stop_wanted:
                raise err.ConsumerStoppedException("the consumer was stopped while it was starting")
            problem = life.machine.last_error if life.machine.failures else None
            if patience.outlasted(problem, told=True) and problem is not None:
                raise problem
            engine.lock.wait(0.2)


def _with_what_the_group_has(error: BaseException, engine: Engine) -> BaseException:
    """Where members do not agree on an assignor: what the others use, if the coordinator tells."""
    if not isinstance(error, err.InconsistentGroupProtocol) or engine.link is None:
        return error
    try:
        body = {"groups": [engine.group_id]}
        (group,) = engine.link.request(MEMBERSHIP, schemas.DESCRIBE_GROUPS, body, _DESCRIBE_MS)["groups"]
        kind, assignor, said = group["protocol_type"], group["protocol_data"], str(error.args[0])
    except (err.KafkaException, LookupError, ValueError) as problem:  # the answer would only explain more
        log.debug("group %s: what the group uses could not be asked for: %s", engine.group_id, problem)
        return error
    if not kind:
        return error
    uses = f", assignor {assignor!r}" if assignor else ""
    return err.InconsistentGroupProtocol(f"{said}. The group has protocol type {kind!r}{uses}")


def _end_forgotten(life: GroupLife) -> None:
    """Without this the heartbeats would keep partitions that nobody reads."""
    log.warning("group %s: a consumer was deleted without stop(): its member leaves", life.engine.group_id)
    life.member.leave("consumer deleted without stop()", 2.0)
    life.engine.close(2.0)


def _work(me: weakref.ref[Any], life: GroupLife) -> None:
    """The membership worker of one life; it ends with that life, and cleans up after a consumer that was deleted."""
    while True:
        consumer = me()
        if consumer is None:
            if not life.engine.closing:
                _end_forgotten(life)
            return
        try:
            # A worker that was stuck while its consumer was stopped and started again has a successor.
            if consumer._group_life is not life or not consumer._tick():  # noqa: SLF001
                return
        except BaseException as error:  # noqa: BLE001 - a worker's death must reach the user
            if consumer._group_life is life:  # noqa: SLF001
                life.engine.fail(_with_what_the_group_has(error, life.engine))
            return
        del consumer
