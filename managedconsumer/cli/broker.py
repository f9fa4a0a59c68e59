"""``managedconsumer broker start|stop|status``: a real Apache Kafka on this machine."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from managedconsumer.testing import DevBrokerError
from managedconsumer.testing.kafka._instances import (
    Instance,
    ensure_running,
    home_of,
    instances,
    load,
    only_one,
    prepare,
)
from managedconsumer.testing.kafka._jars import DEFAULT_VERSION, TESTED_VERSIONS

HELP = "start, stop and look at a real Apache Kafka on this machine"
NOT_RUNNING = 3  # the code by which init scripts say so


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the three actions."""
    actions = parser.add_subparsers(dest="action", metavar="start|stop|status", required=True)
    tested = ", ".join(TESTED_VERSIONS)
    start = actions.add_parser("start", help="start it and return when it answers; data of an earlier run is kept")
    start.add_argument("--kafka-version", default=DEFAULT_VERSION, help=f"tested: {tested} (default: %(default)s)")
    start.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="number of nodes (default: 1)")
    start.add_argument(
        "--port", type=_port, default=9092, help="of the first node, the others take the next; 0: any (default: 9092)"
    )
    start.add_argument("--foreground", action="store_true", help="stay until Ctrl-C, then stop it")
    start.add_argument("--fresh", action="store_true", help="remove the data of an earlier run first")
    start.add_argument(
        "--property", action="append", default=[], type=_property, metavar="KEY=VALUE", help="for server.properties"
    )
    for name, text in (("stop", "stop what is running"), ("status", "what is running, where, and where its log is")):
        action = actions.add_parser(name, help=text)
        action.add_argument("--kafka-version", help="only this version")
        action.add_argument("--brokers", type=int, choices=(1, 3), help="only with so many nodes")
        if name == "status":
            action.add_argument("--json", action="store_true", help="for programs")


def run(arguments: argparse.Namespace) -> int:
    """Dispatches to the action."""
    if arguments.action == "start":
        return _foreground(arguments) if arguments.foreground else _start(arguments)
    return _stop(arguments) if arguments.action == "stop" else _status(arguments)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65533:
        raise argparse.ArgumentTypeError(f"{text!r} is not a TCP port (0 to 65533)")
    return int(text)


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _size(brokers: int) -> str:
    return "1 node" if brokers == 1 else f"{brokers} nodes"


def _start(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    instance, new = ensure_running(
        arguments.kafka_version,
        arguments.brokers,
        arguments.port,
        dict(arguments.property),
        _tell,
        arguments.fresh,
    )
    took = f"started in {time.monotonic() - began:.1f} s" if new else "was running already"
    _show(instance, took)
    return 0


def _foreground(arguments: argparse.Namespace) -> int:
    version, brokers = arguments.kafka_version, arguments.brokers
    home = home_of(version, brokers)
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        if not home.exists():
            prepare(version, brokers, arguments.port, {}, _tell)  # what fails here leaves no directory behind
        with only_one(home):
            found = load(home)
            if found is not None and found.state() == "running":
                raise DevBrokerError(
                    f"Kafka {version} already runs at {found.bootstrap}. Stop it first: managedconsumer broker stop"
                )
            if found is not None:
                found.stop()
            broker = prepare(version, brokers, arguments.port, dict(arguments.property), _tell, arguments.fresh)
            broker.start()
            instance = Instance.of(broker)
            instance.save()
        try:
            _show(instance, "runs until Ctrl-C")
            while broker.is_running:
                time.sleep(0.2)
        finally:
            _tell("stopping ...")
            broker.stop()
            with only_one(home):  # who stops it from elsewhere holds this until the status is gone, too
                found = load(home)
                ended_by_stop = found is None or found.nodes != instance.nodes
                if not ended_by_stop:
                    instance.forget()
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, previous)
    if not ended_by_stop:
        logs = ", ".join(node.log for node in instance.nodes)
        raise DevBrokerError(f"a node of Kafka {version} ended unexpectedly. Log: {logs}")
    return 0


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _stop(arguments: argparse.Namespace) -> int:
    found = instances(arguments.kafka_version, arguments.brokers)
    if not found:
        print("no dev broker is running")
    for instance in found:
        with only_one(Path(instance.home)):
            instance.stop()
        print(f"Kafka {instance.kafka_version} ({_size(instance.brokers)}) stopped; its data stays in {instance.home}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    found = instances(arguments.kafka_version, arguments.brokers)
    states = [instance.state() for instance in found]
    if arguments.json:
        rows = [asdict(instance) | {"state": state} for instance, state in zip(found, states, strict=True)]
        print(json.dumps(rows, indent=1))
    elif not found:
        print("no dev broker is running")
    else:
        for instance, state in zip(found, states, strict=True):
            _show(instance, state)
    return 0 if "running" in states else NOT_RUNNING


def _show(instance: Instance, state: str) -> None:
    print(f"Kafka {instance.kafka_version} ({_size(instance.brokers)}) {state}")
    print(f"  bootstrap  {instance.bootstrap}")
    for node in instance.nodes:
        print(f"  node {node.node_id}     pid {node.pid}, log {node.log}")
    print(f"  data       {instance.home}", flush=True)
