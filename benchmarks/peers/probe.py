"""One lone consumer of any client: how long until its first message, how late messages are, what idling costs, memory.

Answers with one line of JSON. ``--mode``:

``start``     seconds from the call of the constructor until the first message
``latency``   values hold the time at which they were sent (ns, monotonic) and a running number
``rate``      the same for ``--seconds`` at a steady pace, which begins when ``--ready`` is there
``idle``      CPU of the process in ``--seconds`` without messages, after every one that is there has been read
``slow``      a millisecond of pause for each message, for ``--seconds``: how far memory grows beyond a consumer of
              ``--empty``, a topic without messages
``empty``     how far memory grows in ``--seconds`` without messages
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from clients import CLIENTS, Enough, Read, Spec
from measure import cpu_seconds, most_memory_mb

#: Seconds for background work that follows the first messages: a member by KIP-848 sends more heartbeats for 8 s.
_SETTLE = 10.0


def say(facts: dict[str, float]) -> None:
    """The answer."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def percentiles(late: list[int]) -> dict[str, float]:
    """The middle and the hundredth part that is latest, in ms; ``late`` in ns."""
    ordered = sorted(late)
    return {name: ordered[len(ordered) * share // 100] / 1e6 for name, share in (("p50_ms", 50), ("p99_ms", 99))}


def start(read: Read, spec: Spec) -> dict[str, float]:
    """Until the first message, without interpreter and imports."""
    began, cpu = time.monotonic(), cpu_seconds()
    found: dict[str, float] = {}

    def handle(_: bytes) -> float:
        found.update(start_s=time.monotonic() - began, cpu_ms=(cpu_seconds() - cpu) * 1000)
        raise Enough

    try:
        read(spec, handle)
    except Enough:
        pass
    return found


def latency(read: Read, spec: Spec, count: int, skip: int, ready: Path) -> dict[str, float]:
    """Of ``count`` messages, without the first ``skip``. ``ready`` appears with the first: the pace may begin."""
    late: list[int] = []
    state = {"left": count, "cpu": 0.0, "began": 0.0}

    def handle(value: bytes) -> float:
        now = time.monotonic_ns()
        if state["left"] == count:
            ready.touch()
        sent, number = value.split(b" ", 2)[:2]
        if int(number) >= skip:
            if not late:
                state["cpu"], state["began"] = cpu_seconds(), time.monotonic()
            late.append(now - int(sent))
        state["left"] -= 1
        if not state["left"]:
            raise Enough
        return 0.0

    try:
        read(spec, handle)
    except Enough:
        pass
    spent = (cpu_seconds() - state["cpu"]) / (time.monotonic() - state["began"])
    return {
        **percentiles(late),
        "max_ms": max(late) / 1e6,
        "core_percent": spent * 100,
        "messages": len(late),
    }


def rate(read: Read, spec: Spec, count: int, seconds: float, warm: float, ready: Path) -> dict[str, float]:
    """``--count`` messages are there before; then CPU and latency of all that comes after ``warm`` seconds."""
    late: list[int] = []
    state = {"left": count, "begins": 0.0, "ends": 0.0, "cpu": 0.0, "seen": 0}

    def handle(value: bytes) -> float:
        if state["left"] > 0:
            state["left"] -= 1
            if not state["left"]:
                ready.touch()
            return 0.0
        state["seen"] += 1
        now = time.monotonic_ns()
        if now < state["begins"]:
            return 0.0
        if not state["begins"]:
            state["begins"], state["ends"] = now + warm * 1e9, now + (warm + seconds) * 1e9
        elif not state["cpu"]:
            state.update(cpu=cpu_seconds(), began=now, seen=0)
        else:
            late.append(now - int(value[: value.index(b" ")]))
            if now >= state["ends"]:
                state["spent"], state["took"] = cpu_seconds() - state["cpu"], (now - state["began"]) / 1e9
                raise Enough
        return 0.0

    try:
        read(spec, handle)
    except Enough:
        pass
    return {
        **percentiles(late),
        "core_percent": state["spent"] / state["took"] * 100,
        "us": state["spent"] / state["seen"] * 1e6,
        "per_s": state["seen"] / state["took"],
    }


def idle(read: Read, spec: Spec, count: int, seconds: float) -> None:
    """Ends the process: a client that waits for a message cannot be told that there will be none."""
    there = threading.Event()
    left = [count]

    def handle(_: bytes) -> float:
        left[0] -= 1
        if not left[0]:
            there.set()
        return 0.0

    def watch() -> None:
        if not there.wait(30):
            sys.stderr.write(f"{left[0]} of {count} messages never came\n")
            os._exit(1)
        time.sleep(_SETTLE)
        began, cpu = time.monotonic(), cpu_seconds()
        time.sleep(seconds)
        share = (cpu_seconds() - cpu) / (time.monotonic() - began)
        say({"core_percent": share * 100, "max_rss_mb": most_memory_mb(), "threads": threading.active_count() - 1})
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    read(spec, handle)


def empty(read: Read, spec: Spec, seconds: float) -> None:
    """Ends the process: a client that waits for a message cannot be told that there will be none."""
    before = most_memory_mb()

    def end() -> None:
        time.sleep(seconds)
        say({"grown_mb": most_memory_mb() - before})
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    read(spec, lambda _: 0.0)


def of_an_empty_consumer(topic: str) -> float:
    """How far the memory (MB) of this client grows, with the same options, where there is nothing to read."""
    command = [
        sys.executable,
        *sys.argv,
        "--mode",
        "empty",
        "--topic",
        topic,
    ]  # of an option given twice the last counts
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(json.loads(done.stdout.splitlines()[-1])["grown_mb"])


def slow(read: Read, spec: Spec, seconds: float, bound_mb: float, empty_mb: float) -> dict[str, float]:
    """Peak of memory over what the process had after its imports, and over that of a consumer with nothing to read."""
    before = most_memory_mb()
    ends = [0.0]

    def handle(_: bytes) -> float:
        now = time.monotonic()
        ends[0] = ends[0] or now + seconds
        if now > ends[0]:
            raise Enough
        return 0.001

    try:
        read(spec, handle)
    except Enough:
        pass
    peak = most_memory_mb()
    facts = {"max_rss_mb": peak, "grown_mb": peak - before - empty_mb}
    # A bound of 64 MB is 64 MiB, as memory is counted here.
    return facts | ({"of_bound": (peak - before - empty_mb) / bound_mb} if bound_mb else {})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", choices=sorted(CLIENTS), required=True)
    parser.add_argument("--mode", choices=("start", "latency", "rate", "idle", "slow", "empty"), required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--options", type=json.loads, default={}, help="the client's own options, as JSON")
    parser.add_argument("--count", type=int, default=0, help="messages to read")
    parser.add_argument("--skip", type=int, default=0, help="messages that do not count")
    parser.add_argument("--ready", type=Path, help="a file to make when the first message is there")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of a steady pace that do not count")
    parser.add_argument("--bound", type=float, default=0.0, help="MB that the client was told to keep to")
    parser.add_argument("--empty", default="", help="a topic without messages")
    given = parser.parse_args()
    spec = Spec(given.bootstrap, given.topic, f"bench-{uuid.uuid4().hex[:12]}", given.options)
    read = CLIENTS[given.client]()
    if given.mode == "start":
        say(start(read, spec))
    elif given.mode == "latency":
        say(latency(read, spec, given.count, given.skip, given.ready))
    elif given.mode == "rate":
        say(rate(read, spec, given.count, given.seconds, given.warm, given.ready))
    elif given.mode == "slow":
        unread = of_an_empty_consumer(given.empty) if given.empty else 0.0
        say(slow(read, spec, given.seconds, given.bound, unread))
    elif given.mode == "empty":
        empty(read, spec, given.seconds)
    else:
        idle(read, spec, given.count, given.seconds)


if __name__ == "__main__":
    main()
