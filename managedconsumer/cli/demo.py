"""``managedconsumer demo``: page views through Kafka, Spark and a plain consumer, and the proof that both are right."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from managedconsumer.compat.naming import is_legal
from managedconsumer.errors import KafkaException

HELP = "page views through Kafka and Spark to Parquet, counted exactly once, with a proof"
INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="your own Kafka instead of a dev broker")
    parser.add_argument(
        "--topic", type=_topic, help="read from this topic (default: one that is named after what is in it)"
    )
    parser.add_argument(
        "--records",
        type=_count,
        default=1_000_000,
        help="page views to write (default: 1000000); 0: read what is there",
    )
    parser.add_argument("--rate", type=_rate, help="page views per second (default: as fast as it goes)")
    parser.add_argument("--partitions", type=_positive, default=8, help="of a new topic (default: 8)")
    parser.add_argument("--seed", type=int, default=1, help="other page views (default: 1)")
    parser.add_argument("--output", metavar="DIR", help="where the result goes (default: output/<topic>)")
    parser.add_argument(
        "--batch", type=_positive, default=200_000, help="most records of a micro-batch (default: 200000)"
    )
    parser.add_argument("--keep-running", action="store_true", help="go on with what comes later, until Ctrl-C")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run with the same settings")
    parser.add_argument("--kafka-version", metavar="VERSION", help="of the dev broker")
    parser.add_argument("--memory", default="1g", help="of Spark's JVM (default: 1g)")


def _topic(text: str) -> str:
    if not is_legal(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no legal topic name: 1 to 249 of a-z A-Z 0-9 . _ -")
    return text


def _count(text: str) -> int:
    if not text.replace("_", "").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of records")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of page views per second")
    return rate


def run(arguments: argparse.Namespace) -> int:
    """Run it; 0 when the proof holds, 1 when it does not, 130 after Ctrl-C."""
    from managedconsumer.cli._demo_run import Demo, Plan
    from managedconsumer.cli._demo_screen import Screen

    _need_spark()
    given = {name: value for name, value in vars(arguments).items() if name in Plan.__dataclass_fields__}
    plan = Plan(**{name: value for name, value in given.items() if value is not None})
    screen = Screen()
    if plan.records == 0 and (plan.bootstrap is None or plan.topic is None):
        raise _usage("--records 0 reads your own data: give --bootstrap and --topic, too")
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    demo = Demo(plan, screen)
    try:
        return 0 if demo.run() else 1
    except KeyboardInterrupt:
        screen.say("stopping; run the same command again to go on from here")
        return INTERRUPTED
    except KafkaException:
        raise
    except Exception as error:  # noqa: BLE001 - Spark, py4j and a full disk raise all kinds of things
        from managedconsumer.cli._demo_trouble import told

        screen.wipe()
        print(f"managedconsumer: {told(error, demo.output)}\nlogs: {demo.output}", file=sys.stderr)
        return 1
    finally:
        demo.close()
        signal.signal(signal.SIGTERM, previous)


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _need_spark() -> None:
    from managedconsumer.spark import source  # noqa: F401 (raises MissingPackageError that names the extra)


def _usage(text: str) -> Exception:
    from managedconsumer.errors import ConfigurationError

    return ConfigurationError(text)
