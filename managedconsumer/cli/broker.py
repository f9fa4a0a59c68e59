"""``managedconsumer broker start|stop|status``: a real Apache Kafka on this machine."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TypeVar

import click

from managedconsumer.cli import _show
from managedconsumer.testing import DevBrokerError
from managedconsumer.testing.kafka._instances import Instance, ensure_running, instances, load, only_one
from managedconsumer.testing.kafka._jars import DEFAULT_VERSION, TESTED_VERSIONS

NOT_RUNNING = 3  # the exit code of init scripts

F = TypeVar("F", bound=Callable[..., object])


def _properties(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        found[key.strip()] = text
    return found


def _which(function: F) -> F:
    function = click.option("--kafka-version", help="Only this version.")(function)
    return click.option("--brokers", type=_SIZES, help="Only with so many nodes.")(function)


_SIZES = click.Choice((1, 3))


@click.group("broker", short_help="A real Apache Kafka on this machine.")
def command() -> None:
    """Start, stop and look at a real Apache Kafka on this machine."""


@command.command("start", short_help="Start it.")
@click.option(
    "--kafka-version", default=DEFAULT_VERSION, show_default=True, help=f"Tested: {', '.join(TESTED_VERSIONS)}."
)
@click.option("--brokers", type=_SIZES, default=1, show_default=True, help="Number of nodes.")
@click.option(
    "--port",
    type=click.IntRange(0, 65533),
    default=9092,
    show_default=True,
    help="Of the first node, the others take the next; 0: any.",
)
@click.option("--foreground", is_flag=True, help="Stay until Ctrl-C, then stop it.")
@click.option("--fresh", is_flag=True, help="Remove the data of an earlier run first.")
@click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    callback=_properties,
    multiple=True,
    help="For server.properties; repeatable.",
)
def start(
    kafka_version: str, brokers: int, port: int, foreground: bool, fresh: bool, properties: dict[str, str]
) -> None:
    """Start it and return when it answers; data of an earlier run is kept."""
    began = time.monotonic()
    if foreground:
        _foreground(kafka_version, brokers, port, properties, fresh)
        return
    instance, new = ensure_running(kafka_version, brokers, port, properties, _show.tell, fresh)
    _print(instance, f"started in {time.monotonic() - began:.1f} s" if new else "was running already")


def _size(brokers: int) -> str:
    return "1 node" if brokers == 1 else f"{brokers} nodes"


def _foreground(version: str, brokers: int, port: int, properties: dict[str, str], fresh: bool) -> None:
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        instance, broker = ensure_running(version, brokers, port, properties, _show.tell, fresh, foreground=True)
        assert broker is not None  # it has not run before
        home = Path(instance.home)
        try:
            _print(instance, "runs until Ctrl-C")
            while broker.is_running:
                time.sleep(0.2)
        finally:
            _show.tell("stopping ...")
            broker.stop()
            with only_one(home):  # `broker stop` holds it, too, until the status file is gone
                found = load(home)
                ended_by_stop = found is None or found.nodes != instance.nodes
                if not ended_by_stop:
                    instance.forget()
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, previous)
    if not ended_by_stop:
        logs = ", ".join(node.log for node in instance.nodes)
        raise DevBrokerError(f"a node of Kafka {version} ended unexpectedly. Log: {logs}")


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@command.command("stop")
@_which
def stop(kafka_version: str | None, brokers: int | None) -> None:
    """Stop what is running."""
    found = instances(kafka_version, brokers)
    if not found:
        _show.say("no dev broker is running")
    for instance in found:
        with only_one(Path(instance.home)):
            instance.stop()
        size = _size(instance.brokers)
        _show.say(f"Kafka {instance.kafka_version} ({size}) stopped; its data stays in {instance.home}")


@command.command("status", short_help="What is running, and where.")
@_which
@_show.json_option
def status(kafka_version: str | None, brokers: int | None, as_json: bool) -> int:
    """Show which broker runs, where, and where its log is; exits with 3 when none runs."""
    found = instances(kafka_version, brokers)
    states = [instance.state() for instance in found]
    if as_json:
        rows = [asdict(instance) | {"state": state} for instance, state in zip(found, states, strict=True)]
        _show.print_json(rows)
    elif not found:
        _show.say("no dev broker is running")
    else:
        for instance, state in zip(found, states, strict=True):
            _print(instance, state)
    return 0 if "running" in states else NOT_RUNNING


def _print(instance: Instance, state: str) -> None:
    _show.say(f"Kafka {instance.kafka_version} ({_size(instance.brokers)}) {state}")
    _show.say(f"  bootstrap  {instance.bootstrap}")
    for node in instance.nodes:
        _show.say(f"  node {node.node_id}     pid {node.pid}, log {node.log}")
    _show.say(f"  data       {instance.home}")
