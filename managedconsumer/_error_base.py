"""The root of the exception tree and its kinship with pykafka's.  Users import it from ``managedconsumer.errors``."""

from __future__ import annotations

import sys
from typing import Any, Final, Mapping, cast

from managedconsumer.shown import short

_PUBLIC_MODULE: Final = "managedconsumer.errors"
_PYKAFKA_EXCEPTIONS: Final = "pykafka.exceptions"
_LAST_NAME_PYKAFKA_DEFINES: Final = "RdKafkaStoppedException"


class Root(Exception):
    """Gives all exceptions a base that Python lets us exchange; only heap types may swap their bases."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Root:
        # At creation, not at import: pykafka may be imported after us, and importing it ourselves costs 0.2 s.
        adopt_pykafka_bases()
        return super().__new__(cls, *args, **kwargs)


class KafkaException(Root):
    """Base of all exceptions of this package (pykafka's name).

    ``retriable``: the same operation may succeed later without anybody's intervention.  ``refresh_metadata``: the
    view of topics and leaders is stale and should be fetched anew before trying again.

    In a process that also uses pykafka, every class here that pykafka has too is also a subclass of pykafka's, so
    ``except pykafka.exceptions.X`` goes on working in programs that were written for it.
    """

    retriable: bool = False
    refresh_metadata: bool = False


class ProtocolClientError(KafkaException):
    """An error code in a broker's answer.  ``code`` is its number, ``kafka_name`` Kafka's own name for it."""

    ERROR_CODE: int = cast("int", None)  # None on the base, as in pykafka; every subclass has a number
    kafka_name: str = "UNKNOWN"
    description: str = "the broker answered with an error"

    @property
    def code(self) -> int:
        """The number the broker sent."""
        return self.ERROR_CODE

    def __str__(self) -> str:
        text = super().__str__() or self.description
        return f"{text} (Kafka error {self.code}, {self.kafka_name})"


class SaslAuthenticationError(KafkaException):
    """The broker, or we, refused the other's credentials.  Secrets are never part of the text."""


class CommitFailedError(KafkaException):
    """Offsets were not committed; the text says which, which were, and why. The cause is the ``__cause__``.

    ``committed`` and ``not_committed``: next offsets by TopicPartition. ``retriable``: the same call may succeed later
    (the coordinator was away); otherwise the partitions are others' now, who read the messages again.
    """

    committed: Mapping[Any, int] = {}
    not_committed: Mapping[Any, int] = {}


class CommitPendingError(KafkaException, TimeoutError):
    """``Commit.result()`` waited as long as it was told to, and the commit is still under way."""

    retriable = True


ERROR_CODES: dict[int, type[ProtocolClientError]] = {}
"""Error code -> exception class, every code of Kafka 4.3 (pykafka's dict, grown)."""

RETRY, REFRESH = 1, 2


def code_class(
    number: int,
    kafka_name: str,
    name: str,
    description: str,
    flags: int = 0,
    *bases: type[KafkaException],
) -> type[ProtocolClientError]:
    """Create the exception class of one error code and enter it in ``ERROR_CODES``."""
    body = {
        "__doc__": f"{description[0].upper()}{description[1:]}.",
        "__module__": _PUBLIC_MODULE,
        "ERROR_CODE": number,
        "kafka_name": kafka_name,
        "description": description,
        "retriable": flags >= RETRY,
        "refresh_metadata": flags >= REFRESH,
    }
    created = cast("type[ProtocolClientError]", type(name, (ProtocolClientError, *bases), body))
    ERROR_CODES[number] = created
    return created


class UnknownErrorCode(ProtocolClientError):
    """A code that this release does not know: a newer broker's.  ``code`` keeps the number.

    Treated as retriable, as Kafka only adds codes, and giving up on one that heals would be the worse mistake.
    """

    retriable = True
    description = "this release does not know the broker's error code"

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(code, message)
        self.ERROR_CODE = code
        self._message = message

    def __str__(self) -> str:
        return f"{self._message or self.description} (Kafka error {self.code}, {self.kafka_name})"


def error_for_code(code: int, message: str | None = None) -> ProtocolClientError:
    """An exception for a broker's error code, with the broker's own text if it sent one (a line of it).  Never raises.

    ``code`` 0 is no error and should not come here; it gives an ``UnknownErrorCode(0)``, so a caller's slip shows.
    """
    message = short(message) if message else None
    known = ERROR_CODES.get(code)
    if known is None:
        return UnknownErrorCode(code, message)
    return known(message) if message else known()


_adopted = False


def adopt_pykafka_bases() -> None:
    """Make each class here that pykafka has too a subclass of pykafka's, once pykafka is in the process.

    Safe from any thread: two at once compute and assign the same bases.
    """
    global _adopted
    if _adopted:
        return
    twins = vars(sys.modules.get(_PYKAFKA_EXCEPTIONS, object))
    if _LAST_NAME_PYKAFKA_DEFINES not in twins:  # not imported, or still being imported
        return
    for ours in sorted(_descendants(Root), key=lambda cls: len(cls.__mro__)):  # parents first
        twin = twins.get(ours.__name__)
        if isinstance(twin, type) and ours.__module__ == _PUBLIC_MODULE and twin not in ours.__bases__:
            ours.__bases__ = (*ours.__bases__, twin)
    _adopted = True


def _descendants(root: type[Root]) -> set[type[Root]]:
    found, todo = {root}, [root]
    while todo:
        for child in todo.pop().__subclasses__():
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


for _cls in (
    KafkaException,
    ProtocolClientError,
    SaslAuthenticationError,
    CommitFailedError,
    CommitPendingError,
    UnknownErrorCode,
):
    _cls.__module__ = _PUBLIC_MODULE
