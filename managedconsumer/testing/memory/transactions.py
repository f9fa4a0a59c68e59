"""A transaction that a test writes into the in-memory broker's logs: open, then committed or aborted."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from managedconsumer.errors import IllegalStateError
from managedconsumer.wire.records.encode import Record

#: ``(topic, values, options) -> [(partition, offset), ...]``.
Write = Callable[[str, Iterable["bytes | Record | None"], dict[str, Any]], list[tuple[int, int]]]
End = Callable[[bool], None]


class Transaction:
    """Made by ``MemoryBroker.transaction()``. While it is open, a reader of committed messages waits before it.

    As a context manager it commits at the end, and aborts when an exception ends it. From any thread.
    """

    def __init__(self, write: Write, end: End) -> None:
        self._write, self._end = write, end
        self._open = True

    def produce(self, topic: str, values: Iterable[bytes | Record | None], **options: Any) -> list[tuple[int, int]]:
        """As ``MemoryBroker.produce()``, inside of the transaction. Raises IllegalStateError when it has ended."""
        if not self._open:
            raise IllegalStateError("the transaction has ended")
        return self._write(topic, values, options)

    def commit(self) -> None:
        """Readers get its messages. Raises IllegalStateError when it has ended."""
        self._finish(commit=True)

    def abort(self) -> None:
        """Readers of committed messages never get its messages. Raises IllegalStateError when it has ended."""
        self._finish(commit=False)

    def _finish(self, *, commit: bool) -> None:
        if not self._open:
            raise IllegalStateError("the transaction has ended")
        self._open = False
        self._end(commit)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._open:
            self._finish(commit=kind is None)
