"""How long a group member may hand out messages: as long as its session lasts, by its own clock."""

from __future__ import annotations

from managedconsumer.runtime.member import GroupMember


class Lease:
    """Looked at by whoever takes messages, right before: after a freeze of the process any thread may run first.

    A task of the consuming thread (:class:`managedconsumer.runtime.engine.state.Task`), for when it has run out.
    """

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def until(self) -> float:
        """Until when (handler's clock) messages may be handed out; after that :meth:`run`. Takes no lock."""
        end = self._member.machine.session_end()  # before the losses: what is lost meanwhile has no session any more
        return float("-inf") if self._member.unfenced else end

    def run(self) -> None:
        """The membership learns that its session is over, and nothing is handed out any more when this returns."""
        self._member.look_at_session()

    async def run_async(self) -> None:
        """:meth:`run` on an event loop, which does not wait for another thread."""
        import asyncio  # here, as few consume from a loop and importing it takes long

        await asyncio.to_thread(self.run)
