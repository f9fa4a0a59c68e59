"""Limits how long a group member may deliver messages: as long as its session lasts, by its own clock."""

from __future__ import annotations

from managedconsumer.runtime.member import GroupMember


class Lease:
    """A thread checks it right before it takes messages: after a freeze of the process any thread may run first.

    After its end it is a task of the consuming thread (:class:`managedconsumer.runtime.engine.delivery.Task`).
    """

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def until(self) -> float:
        """Until when (handler's clock) messages may be delivered; after that call :meth:`run`. Takes no lock."""
        return self._member.deliver_until()

    def run(self) -> None:
        """Wait, a second at most, until the membership knows that its session is over; then :meth:`until` changes."""
        self._member.await_session()

    async def run_async(self) -> None:
        """:meth:`run` on an event loop, which does not wait for another thread."""
        import asyncio  # here: the import is slow, and few users consume from a loop

        await asyncio.to_thread(self.run)
