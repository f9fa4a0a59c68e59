"""The demo's second opinion: a plain ManagedBalancedConsumer in another group counts the same events.

As a program: reads nothing but the end of its standard input, which means stop; writes a line of JSON now and then. Its
counts and the offsets that they reach to are saved together, so a later run goes on exactly there.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from managedconsumer.spark.events import WINDOW_MS, Tally

_REPORT_EVERY = 0.3


def tally_to_json(tally: Tally) -> dict[str, dict[str, int]]:
    """By window and user; keys that are not UTF-8 survive, and so does a view without a user."""
    nested: dict[str, dict[str, int]] = {}
    for (user, window), count in tally.items():
        name = "" if user is None else "k" + user.decode("utf-8", "surrogateescape")
        nested.setdefault(str(window), {})[name] = count
    return nested


def tally_from_json(nested: dict[str, dict[str, int]]) -> Tally:
    """Read the result of :func:`tally_to_json`."""
    tally: Counter[Any] = Counter()
    for window, users in nested.items():
        for name, count in users.items():
            user = name[1:].encode("utf-8", "surrogateescape") if name else None
            tally[user, int(window)] = count
    return tally


class Saved:
    """The counter's state: its counts, and the offsets that they reach. One file, replaced in one step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tally: Tally = Counter()
        self.next: dict[int, int] = {}

    def load(self) -> Saved:
        """Read the file, if there is one."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self
        self.next = {int(number): offset for number, offset in found["next"].items()}
        self.tally = tally_from_json(found["views"])
        return self

    def save(self) -> None:
        """Write the file."""
        draft = self.path.with_suffix(".new")
        content = {"next": self.next, "views": tally_to_json(self.tally)}
        draft.write_text(json.dumps(content), encoding="utf-8")
        draft.replace(self.path)


class Counting:
    """The child process, seen from the demo."""

    def __init__(self, bootstrap: str, topic: str, group: str, path: Path) -> None:
        self.path = path
        self.positions: dict[int, int] = {}
        self.counted = 0
        self.error = ""
        command = [sys.executable, "-m", "managedconsumer.cli._demo_counter", bootstrap, topic, group, str(path)]
        here = str(Path(__file__).resolve().parents[2])
        known = os.environ.get("PYTHONPATH")
        env = {**os.environ, "PYTHONPATH": here if not known else f"{here}{os.pathsep}{known}"}
        self._log = path.with_suffix(".log").open("ab")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            # Ctrl-C is for the demo, which then decides in which order everybody stops.
            start_new_session=True,
        )
        self._rest = b""
        self._stopped = False

    def poll(self) -> None:
        """Read what it has reported so far; never waits."""
        out = self._process.stdout
        assert out is not None
        while select.select([out], [], [], 0)[0]:
            got = os.read(out.fileno(), 65536)
            if not got:
                break
            *lines, self._rest = (self._rest + got).split(b"\n")
            for line in lines:
                report = json.loads(line)
                self.counted = report["counted"]
                self.positions = {int(number): offset for number, offset in report["next"].items()}
        code = self._process.poll()
        if code:
            self.error = f"the plain consumer ended with code {code}, see {self.path.with_suffix('.log')}"

    def ask_to_stop(self) -> None:
        """Let it save and leave its group; returns at once."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def stop(self, timeout: float) -> None:
        """:meth:`ask_to_stop`, and kill it if it does not. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self.ask_to_stop()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.poll()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


def main(bootstrap: str, topic: str, group: str, path: str) -> int:
    """Count until standard input ends."""
    from managedconsumer import ManagedBalancedConsumer

    saved = Saved(Path(path)).load()

    def go_on(_consumer: Any, _old: Any, new: dict[int, int]) -> dict[int, int]:
        # pykafka's convention: the offset last consumed, -2 for "nothing yet".
        return {number: saved.next[number] - 1 if saved.next.get(number) else -2 for number in new}

    consumer = ManagedBalancedConsumer(
        topic,
        bootstrap,
        group,
        auto_commit_enable=True,
        auto_commit_interval_ms=1000,
        consumer_timeout_ms=100,
        queued_max_messages=20_000,
        post_rebalance_callback=go_on,
    )
    try:
        _count(consumer, saved)
    finally:
        consumer.stop()
        saved.save()
    _report(saved)
    return 0


def _count(consumer: Any, saved: Saved) -> None:
    tally, position, consume = saved.tally, saved.next, consumer.consume
    reported = 0.0
    while True:
        for _ in range(2000):
            message = consume()
            if message is None:
                break
            time_ms = message.timestamp
            tally[message.partition_key, time_ms - time_ms % WINDOW_MS] += 1
            position[message.partition_id] = message.offset + 1
        if time.monotonic() - reported >= _REPORT_EVERY:
            reported = time.monotonic()
            _report(saved)
            if select.select([sys.stdin], [], [], 0)[0]:
                return


def _report(saved: Saved) -> None:
    sys.stdout.write(json.dumps({"counted": saved.tally.total(), "next": saved.next}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
