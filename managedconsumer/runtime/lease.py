"""How long a group member may hand out messages: as long as its session lasts, by its own clock."""

from __future__ import annotations

from managedconsumer.runtime.member import GroupMember


class Lease:
    """Every thread that takes messages checks it right before: after a freeze of the process any thread may run first.

    A task of the consuming thread (:class:`managedconsumer.runtime.engine.state.Task`), for when it has run out.
    """

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def until(self) -> float:
        """Until when (handler's clock) messages may be handed out; after that :meth:`run`. Takes no lock."""
        return self._member.deliver_until()

    def run(self) -> None:
        """Wait until the membership knows that its session is over, a second at most; :meth:`until` says if it does."""
        self._member.await_session()

    async def run_async(self) -> None:
        """:meth:`run` on an event loop, which does not wait for another thread."""
        import asyncio  # here, as few consume from a loop and importing it takes long

        await asyncio.to_thread(self.run)
