"""Record batches in, messages out: what one fetch response holds for one partition becomes an iterator.

Two implementations of one interface, byte for byte the same: a compiled accelerator and a twin in Python, chosen
once, here.  ``__impl__`` says which one runs ("cython" or "python"), ``__impl_reason__`` why.  The environment
variable ``MANAGEDCONSUMER_IMPL`` set to one of these names forces it, and makes its absence an ImportError.

``RecordChunk(context, data, fetch_offset, *, aborted=(), read_committed=False, check_crcs=True,
max_batch_bytes=64 MiB, beside=None)``

* The constructor reads the batches' headers and checks their CRCs; it decompresses nothing (``beside`` runs what takes
  long, later: see :func:`.compression.decompress`).  ``next_fetch_offset`` is the offset behind
  the last sound batch (``fetch_offset`` if there is none), ``record_count`` an upper bound of the messages to come,
  ``nbytes`` the chunk's size, ``last_leader_epoch`` the last batch's (KIP-320), ``epochs`` the pairs (first offset,
  leader epoch) where the epoch changes, ``corrupt`` whether a batch is known to be damaged.  A batch cut off at the end
  is ignored; if it is the only one, ``needs_bytes`` is what it takes (brokers before 0.10.1 do that), else 0.
  ``batch_bytes`` is the size of the largest batch, ``unpack_bytes`` what the largest compressed one takes when it is
  unpacked: a guess (four times its size) until one turns out to be larger; 0 without compression.
* ``next(chunk)`` gives the next message, in order of offsets, without those below ``fetch_offset``, without
  transaction markers, and with ``read_committed`` without those of ``aborted`` transactions: the pairs
  (producer id, first offset) of the response.
* ``position`` is the next offset to read after the last message handed out, exact at every moment; at the end of the
  chunk it passes gaps, markers and aborted records, and ``exhausted`` becomes true.
* A damaged batch raises CorruptRecordError once everything before it was handed out, and again at each call;
  ``position`` stays before it.  Then ``skip_corrupt()`` moves behind it and returns the new position.
* ``take(n, stop_offset=None, max_bytes=None)`` gives up to n messages (below ``stop_offset``) as a list: fewer only
  where there are no more, before a damaged batch, or once batches of ``max_bytes`` (decompressed) were opened for it.
* ``active = False``, from any thread, ends the chunk: ``next`` hands out nothing more and ``position`` stays.  A
  ``take`` that is under way may still return what it has gathered; ``position`` counts that.
* ``rewind(position)`` goes back to where the chunk has been: for a caller that could not use what it had taken. What
  follows is read again. A chunk that was exhausted has no bytes any more and becomes inactive: it has to be fetched
  again from there.
* ``again(offset)`` gives a fresh chunk over the same bytes, which begins at ``offset``: to look at what will be handed
  out, or is in a hand, without moving this one. None when this one has no bytes any more.
* An exception that is not CorruptRecordError (a signal, too little memory) takes nothing out of the chunk: ``take``
  sees to that, and so does the accelerator's ``next``; after the twin's ``next`` call ``rewind(position)``.

A chunk belongs to one thread at a time, but for ``active``.  Sources: Kafka's protocol documentation (record batch),
KIP-32, KIP-82, KIP-98, KIP-101, KIP-320; pykafka's ``Message``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

IMPLEMENTATIONS = ("cython", "python")
ENVIRONMENT_VARIABLE = "MANAGEDCONSUMER_IMPL"
_INTERFACE = 16  # raised with every change of the interface, so that a stale build is not mistaken for a new one


def load(name: str) -> Any:
    """The module of one implementation by its name; ImportError with the reason if it cannot be had."""
    if name == "python":
        from managedconsumer.wire.records import _records_py

        return _records_py
    if name != "cython":
        raise ImportError(f"{ENVIRONMENT_VARIABLE} is {name!r}; it can be {' or '.join(IMPLEMENTATIONS)}")
    import importlib

    module = importlib.import_module("managedconsumer.wire.records._records")
    if getattr(module, "INTERFACE", None) != _INTERFACE:
        raise ImportError("managedconsumer.wire.records._records was built from other sources: build it again")
    return module


def _choose() -> tuple[Any, str]:
    wanted = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if wanted:
        return load(wanted), f"{ENVIRONMENT_VARIABLE}={wanted}"
    try:
        return load("cython"), "the accelerator is built"
    except ImportError as error:
        return load("python"), f"the accelerator cannot be used: {error}"


if TYPE_CHECKING:
    from managedconsumer.wire.records._lane_py import FastPath as FastPath
    from managedconsumer.wire.records._lane_py import Lane as Lane
    from managedconsumer.wire.records._message_py import Message as Message
    from managedconsumer.wire.records._message_py import PartitionContext as PartitionContext
    from managedconsumer.wire.records._message_py import extents_of as extents_of
    from managedconsumer.wire.records._message_py import messages_of as messages_of
    from managedconsumer.wire.records._message_py import runs_of as runs_of
    from managedconsumer.wire.records._message_py import topic_ids_of as topic_ids_of
    from managedconsumer.wire.records._records_py import RecordChunk as RecordChunk

    __impl__: str
    __impl_reason__: str
else:
    _module, __impl_reason__ = _choose()
    __impl__ = _module.IMPLEMENTATION
    Lane = _module.Lane
    FastPath = _module.FastPath
    Message = _module.Message
    PartitionContext = _module.PartitionContext
    RecordChunk = _module.RecordChunk
    extents_of = _module.extents_of
    messages_of = _module.messages_of
    runs_of = _module.runs_of
    topic_ids_of = _module.topic_ids_of


def is_fallback() -> bool:
    """Whether the twin in Python runs because the accelerator could not be loaded, not because it was chosen."""
    return __impl__ == "python" and not os.environ.get(ENVIRONMENT_VARIABLE)


def rebuild_message(*fields: Any) -> Message:
    """A message from what ``copy`` and ``pickle`` saved of it, in the implementation of this process."""
    value, key, offset, timestamp, headers, topic, partition_id, timestamp_type, leader_epoch, version, *more = fields
    return Message(
        value,
        key,
        offset=offset,
        timestamp=timestamp,
        headers=headers or (),
        topic=topic,
        partition_id=partition_id,
        timestamp_type=timestamp_type,
        leader_epoch=leader_epoch,
        protocol_version=version,
        topic_id=more[0] if more else None,  # what version 0.2.0 has pickled has none
    )
