"""Transactional producers of other libraries, as ``KafkaStore`` drives them: confluent-kafka's and kafka-python's."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Callable, Mapping

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

# librdkafka's own error codes.
_FENCED, _NOT_CONFIGURED, _STATE = -144, -145, -172
# Kafka's codes by which the coordinator refuses offsets of a former member (KIP-447, KIP-848).
_NO_MEMBER = (
    *(codes.ILLEGAL_GENERATION, codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID, codes.FENCED_MEMBER_EPOCH),
    err.StaleMemberEpoch.ERROR_CODE,
)
_PRODUCER_FENCED = (_FENCED, err.InvalidProducerEpoch.ERROR_CODE, err.ProducerFenced.ERROR_CODE)
_PAUSE = 0.1
_NO_ID = (
    "this producer has no transactional.id, so it has no transactions: give it one that no other producer of the "
    "cluster has, and that is the same when this process starts again ('billing-1')"
)


def producing(producer: Any, handler: Handler, patience: float) -> Confluent:
    """The driver of ``producer``. Raises TypeError for another object, ConfigurationError if Kafka cannot fence it."""
    if not all(callable(getattr(producer, name, None)) for name in ("begin_transaction", "commit_transaction")):
        raise TypeError(
            f"producer={producer!r}: needed is a transactional confluent_kafka.Producer or kafka.KafkaProducer"
        )
    from inspect import iscoroutinefunction  # here, as importing it takes long

    if iscoroutinefunction(producer.begin_transaction):
        raise err.ConfigurationError(
            f"{type(producer).__module__}.{type(producer).__name__} is a producer for asyncio. aiokafka's sends the "
            "group's name alone with its offsets, so that Kafka cannot refuse a member that was evicted. Use "
            "confluent_kafka.Producer or kafka.KafkaProducer, and `await asyncio.to_thread(store.save, batch, write)`"
        )
    kind = Confluent if hasattr(producer, "produce") else KafkaPython
    return kind(producer, handler, patience)


class Confluent:
    """confluent-kafka's ``Producer`` and its subclasses. Calls block, and raise the library's errors."""

    def __init__(self, producer: Any, handler: Handler, patience: float) -> None:
        """``patience``: seconds for each call."""
        self._producer, self._handler, self._patience = producer, handler, patience

    def prepare(self) -> None:
        """Initialise its transactions if needed. Raises ConfigurationError if it has none."""
        try:
            self._patiently(self._producer.init_transactions)
        except Exception as error:
            if _code(error) == _NOT_CONFIGURED:
                raise err.ConfigurationError(_NO_ID) from error
            if _code(error) != _STATE:  # it is initialised already
                raise

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], membership: Any) -> None:
        """Add these next offsets to the transaction; ``membership``: a ``GroupMetadata``."""
        from confluent_kafka import TopicPartition as Place

        places = [Place(*tp, each.offset, each.metadata) for tp, each in offsets.items()]
        self._patiently(self._producer.send_offsets_to_transaction, places, membership.for_confluent())

    def commit(self) -> None:
        self._patiently(self._producer.commit_transaction)

    def abort(self) -> None:
        self._patiently(self._producer.abort_transaction)

    def refused(self, error: BaseException) -> bool:
        """True if the group's coordinator has said that the membership is over."""
        return _code(error) in _NO_MEMBER

    def fenced(self, error: BaseException) -> bool:
        """True if the producer is fenced: by another one with its transactional.id, or by a time-out."""
        return _code(error) in _PRODUCER_FENCED

    def _patiently(self, call: Callable[..., Any], *words: Any) -> None:
        """Repeat a call after a time-out: librdkafka goes on in the background, and expects the call until it ends."""
        deadline = Deadline(self._handler.now(), self._patience)
        while True:
            try:
                self._handler.run_blocking(call, *words, max(deadline.remaining(self._handler.now()) or 0.0, _PAUSE))
                return
            except Exception as error:
                problem: Any = error.args[0] if error.args else None
                again = hasattr(problem, "retriable") and problem.retriable() and not problem.txn_requires_abort()
                if not again or deadline.expired(self._handler.now()):
                    raise
            self._handler.sleep(_PAUSE)


class _Sends:
    """kafka-python's ``send``, with the futures that it has returned in this transaction."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send
        self.futures: list[Any] = []

    def __call__(self, *words: Any, **more: Any) -> Any:
        future = self._send(*words, **more)
        self.futures.append(future)
        return future


class KafkaPython(Confluent):
    """kafka-python's ``KafkaProducer`` from version 3 on. A worker makes the calls, as they have no time-out.

    It makes up for three defects of 3.0.12: an aborted transaction leaves offsets and records behind, which would go
    with the next one; and a transaction whose records have expired is committed without them.
    """

    def prepare(self) -> None:
        if getattr(self._producer, "config", {}).get("transactional_id") is None:
            raise err.ConfigurationError(_NO_ID)
        self._producer.init_transactions()
        if not isinstance(self._producer.send, _Sends):
            self._producer.send = _Sends(self._producer.send)

    def begin(self) -> None:
        super().begin()  # it raises as long as the last transaction has not ended
        self._producer.send.futures.clear()
        # Offsets that the coordinator has refused: a partition that is another member's by now would go back.
        getattr(getattr(self._producer, "_transaction_manager", None), "_pending_txn_offset_commits", {}).clear()
        # Records that were not sent when it gave the last transaction up (after INVALID_PRODUCER_EPOCH, for example).
        drop = getattr(getattr(self._producer, "_accumulator", None), "abort_undrained_batches", None)
        if drop is not None:
            drop(err.IllegalStateError("the transaction of this record has ended"))

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], membership: Any) -> None:
        from kafka.structs import OffsetAndMetadata as Entry
        from kafka.structs import TopicPartition as Place

        self._patiently(self._deliver)
        entries = {Place(*tp): Entry(each.offset, each.metadata, -1) for tp, each in offsets.items()}
        self._patiently(self._producer.send_offsets_to_transaction, entries, membership.for_kafka_python())

    def _deliver(self) -> None:
        """Raise the error of the first record that was not delivered. It changes nothing, so it may end too late."""
        from kafka.errors import KafkaTimeoutError

        futures = self._producer.send.futures[:]
        on_the_way = bool(futures)
        while on_the_way:
            with suppress(KafkaTimeoutError):
                self._producer.flush(_PAUSE)  # not longer: what is behind a failed record may never be sent
            on_the_way = not all(future.is_done for future in futures)
            for future in futures:
                if future.failed():
                    raise future.exception

    def refused(self, error: BaseException) -> bool:
        return type(error).__name__ == "CommitFailedError" or getattr(error, "errno", None) in _NO_MEMBER

    def fenced(self, error: BaseException) -> bool:
        """See :meth:`Confluent.fenced`. After the first time only the error's text says it."""
        return "ProducerFenced" in f"{type(error).__name__}: {error}"

    def _patiently(self, call: Callable[..., Any], *words: Any) -> None:
        ended: list[Exception | None] = []

        def attempt() -> None:
            try:
                call(*words)
                ended.append(None)
            except Exception as error:  # noqa: BLE001 - the waiting thread raises it
                ended.append(error)

        self._handler.run_beside("producer", self._patience, attempt)
        if not ended:
            name = call.__name__.lstrip("_")
            raise err.RequestTimedOut(f"kafka-python's {name}() has not ended for {self._patience:.0f} s")
        if ended[0] is not None:
            raise ended[0]


def _code(error: BaseException) -> int | None:
    problem: Any = error.args[0] if error.args else None
    return int(problem.code()) if hasattr(problem, "code") else None
