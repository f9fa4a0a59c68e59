"""Answers are received by the fetch worker, or by a consuming thread that has nothing else to do (:class:`Loan`)."""

from __future__ import annotations

from typing import Protocol

from managedconsumer import errors as err
from managedconsumer.fetch import plan as fp
from managedconsumer.runtime.engine.fetcher import Fetcher, Loan, Sent
from managedconsumer.runtime.engine.state import EngineState

# A worker reclaims its connection when no consuming thread has polled it for so long (seconds), or a little longer.
# Until then one answer may wait in the kernel.
_MISSED = 1.0
# How often (seconds), at least, the worker checks whether there is still a consumer.
_LONGEST_NAP = 5.0


class _Pool(Protocol):
    """The methods of the fetch pool that a loan uses."""

    limits: fp.FetchLimits

    def take_all(self, fetcher: Fetcher, results: list[fp.PartitionResult], now: float) -> bool:
        """Take over an answer. The lock is held."""

    def repeats(self, fetcher: Fetcher, now: float) -> bool:
        """True if the same request follows at once. The lock is held."""


class Loans:
    """The loans of one consumer. ``engine.lock`` guards everything here."""

    def __init__(self, pool: _Pool, engine: EngineState) -> None:
        self._pool = pool
        self._engine = engine
        self.loans: tuple[Loan, ...] = ()
        #: True: a worker sleeps for long, as a thread looks after its connection all the time.
        self._asleep = False

    # -- the worker ---------------------------------------------------------------------------------------------

    def lend(self, fetcher: Fetcher, plan: fp.FetchPlan, sent: Sent) -> Loan | None:
        """Lend the connection and wait until it is back; None: it was not lent. Without the lock.

        Raises what has gone wrong with it.
        """
        engine, connection = self._engine, sent.connection
        if engine.lookout is None or not fetcher.leader.lends or connection.throttled_until:
            return None
        if fetcher.parked is not None:  # about to be left to the client's watch
            return None
        if not connection.lend():
            return None
        loan = Loan(fetcher, plan, sent)
        try:
            with engine.mutex:
                fetcher.leader.starved = fetcher.leader.must_wake = False
                fetcher.loan = loan
                self.loans += (loan,)
                engine.lock.notify_all()
                while not engine.closing and not self._is_over(loan):
                    pass
                loan.over = True
                while loan.busy and loan.busy == engine.server:
                    engine.loans.wait(_LONGEST_NAP)
                fetcher.loan = None
                self.loans = tuple(each for each in self.loans if each is not loan)
        finally:
            connection.take_back()
        if loan.busy:
            self._mend(loan)
        if loan.error is not None:
            raise loan.error
        return loan

    def _is_over(self, loan: Loan) -> bool:
        """Wait a while. True when the worker has to take its connection back."""
        engine, rounds = self._engine, loan.rounds
        if loan.over:
            return True
        if not engine.loans.wait(_MISSED) and rounds == loan.rounds:
            self._asleep = True  # in this order, see :meth:`nobody_serves`
            if not engine.server:
                loan.over = True
            elif not loan.over:
                engine.loans.wait(_LONGEST_NAP)
            self._asleep = False
        return loan.over

    def _mend(self, loan: Loan) -> None:
        """Recover from a thread that was interrupted in the middle: fetch again what has not been handed out."""
        engine = self._engine
        loan.sent.connection.close()
        with engine.mutex:
            loan.fetcher.leader.forget()
            engine.collector.shelve()
            for queue, version, _ in loan.plan.tickets.values():
                if queue.version == version:
                    engine.buffer.fetch_again(queue)
            engine.lock.notify_all()
        loan.answer, loan.error, loan.delivered = None, None, True

    def call_back(self, fetcher: Fetcher) -> None:
        """Call the connection back: the worker needs it for another request. The lock is held."""
        if fetcher.loan is not None:
            fetcher.loan.over = True
            self._engine.loans.notify_all()

    # -- the consuming thread -------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Give connections back to their workers whose answer is overdue. The lock is held."""
        for loan in self.loans:
            if now >= loan.sent.overdue_at:
                self.call_back(loan.fetcher)

    def nobody_serves(self, who: int) -> None:
        """Note that the thread ``who``, which received for the workers, has left. Without the lock."""
        engine = self._engine
        engine.server = 0  # before the others are looked at: they look at this after they have changed
        wanted = self._asleep or engine.sitting > 0
        for loan in self.loans:
            wanted = wanted or loan.over or loan.busy != 0
        if wanted:
            with engine.mutex:
                for loan in self.loans:
                    loan.over = loan.over or loan.busy == who
                engine.loans.notify_all()
                engine.lock.notify_all()

    def serve(self, loan: Loan, who: int) -> None:
        """Receive from the connection, and ask for more. Without the lock; ``who`` is the receiving thread.

        What is not as nearly always goes back to the worker. Raises nothing but what interrupts the calling thread.
        """
        if loan.over or loan.busy:
            return
        loan.busy = who
        loan.rounds += 1
        try:
            more = not loan.over and self._go_on(loan)
        except err.KafkaException as error:
            loan.error, more = error, False
        loan.busy = 0
        if loan.over or not more:
            with self._engine.mutex:
                self.call_back(loan.fetcher)

    def _go_on(self, loan: Loan) -> bool:
        """False: the worker goes on."""
        pool, engine, fetcher, sent = self._pool, self._engine, loan.fetcher, loan.sent
        answer = sent.connection.receive_at_once(sent.request)
        if isinstance(answer, bool):
            return answer
        results = fp.read_answer(loan.plan, answer, pool.limits)
        plain = not answer.get("error_code") and not answer.get("throttle_time_ms")
        for result in results:
            plain = plain and result.outcome is fp.Outcome.DATA
        if not plain:
            loan.answer = answer
            return False
        leader, more = fetcher.leader, False
        leader.accept(answer)
        with engine.mutex:
            loan.delivered = True
            now = engine.handler.now()
            pool.take_all(fetcher, results, now)
            if leader.must_wake:
                leader.must_wake = False
                engine.lock.notify_all()
            more = not loan.over and pool.repeats(fetcher, now)
            if more:
                body = leader.body(loan.plan, sent.version)
        if not more:
            return False
        connection, version, wait_ms = sent.connection, sent.version, sent.wait_ms
        request = connection.send_again(body, version, now)
        until = now + wait_ms / 1000
        loan.sent = Sent(connection, request, version, wait_ms, until, min(until, connection.overdue_at))
        loan.delivered = False
        return True
