"""The arguments and the result of ``run()`` as values. Pure."""

from __future__ import annotations

from typing import Any, Sequence

from managedconsumer.config import check_choice, check_int, wrong_kind, wrong_value
from managedconsumer.values import NamedTuple, Value

KEY, PARTITION, NONE, TIME, ALL = "key", "partition", "none", "time", "all"
ORDERS = (KEY, PARTITION, NONE, TIME)
#: A pause grows up to ``most_ms``; this many doublings are beyond every bound.
_MOST_STEPS = 64


class Retry(Value):
    """How often ``run()`` retries a failed message, and after which pauses. Immutable.

    ``attempts``: calls of the handler per message. The pause after the first failure is ``first_ms``; each further
    one is ``factor`` times as long, ``most_ms`` at most; ``jitter`` 0.2 makes it up to 20 % shorter or longer at
    random. ``on``: the exceptions to retry (a class or several); any other one counts as the last failure.

    Raises TypeError or ConfigurationError for bad values.
    """

    attempts: int
    first_ms: int
    factor: float
    most_ms: int
    jitter: float
    on: tuple[type[BaseException], ...]
    _fields = ("attempts", "first_ms", "factor", "most_ms", "jitter", "on")

    def __init__(
        self,
        attempts: int = 5,
        first_ms: int = 100,
        factor: float = 2.0,
        most_ms: int = 30000,
        jitter: float = 0.2,
        on: type[BaseException] | Sequence[type[BaseException]] = (Exception,),
    ) -> None:
        for name, value, least in (("factor", factor, 1.0), ("jitter", jitter, 0.0)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise wrong_kind(name, value, "a number")
            if value < least or (name == "jitter" and value > 1.0):
                raise wrong_value(name, value, "a number from 0 to 1" if name == "jitter" else "1 or more")
        kinds = (on,) if isinstance(on, type) else tuple(on)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise wrong_kind("on", kind, "exception classes")
        values = {
            "attempts": check_int("attempts", attempts),
            "first_ms": check_int("first_ms", first_ms, 0, "ms"),
            "factor": float(factor),
            "most_ms": check_int("most_ms", most_ms, 0, "ms"),
            "jitter": float(jitter),
            "on": kinds,
        }
        self.__dict__.update(values)

    def pause(self, failures: int, chance: float) -> float:
        """Seconds before the next attempt after so many failures; ``chance`` from 0 to 1 decides the jitter."""
        longest = min(float(self.most_ms), self.first_ms * self.factor ** min(failures - 1, _MOST_STEPS))
        return longest * (1.0 + self.jitter * (2.0 * chance - 1.0)) / 1000.0

    def again(self, error: BaseException, failures: int) -> bool:
        """True if a message with so many failures, the last by ``error``, is tried again."""
        return failures < self.attempts and isinstance(error, self.on)


class RunSummary(NamedTuple):
    """The result of one ``run()``: numbers of messages, and how it ended.

    ``done``: the handler returned. ``dead``: all attempts failed, and ``on_dead`` returned. ``unfinished``: taken but
    not finished, so the next owner of the partition gets them. ``retried``: attempts after a failure.
    ``seconds``: how long it ran. ``reason``: ``"stopped"``, ``"signal"`` or ``"failed"``.
    """

    done: int
    retried: int
    dead: int
    unfinished: int
    seconds: float
    reason: str


class Plan(NamedTuple):
    """The arguments of ``run()`` for decisions.

    ``batch``: most messages, and longest wait (seconds) for them; ``rate``: messages a second, and of what. ``idle``:
    how long (seconds) a partition at the end of its log holds the others up, with the order "time".
    """

    order: str = KEY
    max_in_flight: int = 1000
    batch: tuple[int, float] | None = None
    retry: Retry | None = None
    rate: tuple[float, str] | None = None
    idle: float = 0.5


def plan_of(order: Any, max_in_flight: Any, batch: Any, retry: Any, rate: Any = None, idle_ms: Any = 500) -> Plan:
    """Make a Plan from a user's arguments. Raises TypeError or ConfigurationError."""
    checked = None
    if batch is not None:
        try:
            most, wait = batch
        except (TypeError, ValueError):
            raise wrong_kind("batch", batch, "a pair (messages, milliseconds)") from None
        seconds = check_int("batch[1]", wait, 0, "ms") / 1000.0
        checked = check_int("batch[0]", most), seconds
    if retry is not None and not isinstance(retry, Retry):
        raise wrong_kind("retry", retry, "a Retry (or None)")
    most_in_flight = check_int("max_in_flight", max_in_flight)
    if checked is not None and checked[0] > most_in_flight:
        raise wrong_value("batch[0]", checked[0], f"at most max_in_flight={most_in_flight}")
    order = check_choice("order", order, ORDERS)
    if rate is not None:
        rate = _check_rate(rate, order, checked)
    return Plan(order, most_in_flight, checked, retry, rate, check_int("idle_ms", idle_ms, 0, "ms") / 1000.0)


def _check_rate(rate: Any, order: str, batch: Any) -> tuple[float, str]:
    per_second, by = rate if isinstance(rate, tuple | list) and len(rate) == 2 else (rate, ALL)
    if isinstance(per_second, bool) or not isinstance(per_second, int | float):
        raise wrong_kind("rate", rate, "messages a second, or a pair (messages a second, 'key' or 'partition')")
    if not 0.0 < per_second < float("inf"):
        raise wrong_value("rate", rate, "more than 0 messages a second")
    check_choice("rate[1]", by, (KEY, PARTITION, ALL))
    if by == KEY and order != KEY:
        raise wrong_value("order", order, "'key' with a rate for each key")
    if by == PARTITION and order == TIME:
        raise wrong_value("order", order, "another one with a rate for each partition")
    if by == PARTITION and batch is not None and order != PARTITION:
        raise wrong_value("order", order, "'partition' with batch and a rate for each partition")
    return float(per_second), by
