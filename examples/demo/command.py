"""``managedconsumer demo``: page views through Kafka, Spark and a plain consumer, and the proof that both are right."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

import click

from managedconsumer.cli import _show
from managedconsumer.cli._codes import INTERRUPTED
from managedconsumer.errors import KafkaException
from managedconsumer.subscription_input import is_legal


def _count(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    if not value.replace("_", "").isdecimal():
        raise click.BadParameter(f"{value!r} is not a number of records")
    return int(value)


def _topic(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_legal(value):
        raise click.BadParameter(f"{value!r} is no legal topic name: 1 to 249 of a-z A-Z 0-9 . _ -")
    return value


@click.command("demo", short_help="Page views through Kafka and Spark, with a proof.")
@click.option("-b", "--bootstrap", metavar="HOST:PORT", help="Your own Kafka instead of a dev broker.")
@click.option("--topic", callback=_topic, help="Read from this topic. [default: one that is named after what is in it]")
@click.option(
    "--records",
    metavar="INTEGER",
    callback=_count,
    default="1_000_000",
    show_default=True,
    help="Page views to write; 0: read what is there.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Page views per second. [default: as fast as it goes]"
)
@click.option("--partitions", type=click.IntRange(1), default=8, show_default=True, help="Of a new topic.")
@click.option("--seed", type=int, default=1, show_default=True, help="Other page views.")
@click.option("--output", metavar="DIR", help="Where the result goes. [default: output/TOPIC]")
@click.option(
    "--batch", type=click.IntRange(1), default=1_000_000, show_default=True, help="Most records of a micro-batch."
)
@click.option("--keep-running", is_flag=True, help="Go on with what comes later, until Ctrl-C.")
@click.option("--fresh", is_flag=True, help="Forget an earlier run with the same settings.")
@click.option("--kafka-version", metavar="VERSION", help="Of the dev broker.")
@click.option("--memory", default="1g", show_default=True, help="Of Spark's JVM.")
def command(**given: Any) -> int:
    """Page views through Kafka and Spark to Parquet, counted exactly once, with a proof.

    Exits with 0 when the proof holds, with 1 when it does not.
    """
    return run(given)


def run(options: Mapping[str, Any]) -> int:
    """Run it; 0 when the proof holds, 1 when it does not, 130 after Ctrl-C."""
    from managedconsumer.cli._demo.run import Demo, Plan
    from managedconsumer.cli._demo.screen import Screen

    _need_spark()
    given = {name: value for name, value in options.items() if name in Plan.__dataclass_fields__}
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
        from managedconsumer.cli._demo.trouble import told

        screen.wipe()
        _show.tell(f"managedconsumer: {told(error, demo.output)}\nlogs: {demo.output}")
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
