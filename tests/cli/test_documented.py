"""What docs/reference/commands.rst shows is what the commands print."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator

import pytest

from managedconsumer import ManagedBalancedConsumer, cli
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.pages import page

pytestmark = pytest.mark.broker

PAGE = page("commands.rst")
BEGAN = 1_767_261_600_000
COMMANDS = {
    "topics": ["topics orders"],
    "peek": ["peek orders -n 3", "peek orders --from -1 -p 1 -f json"],
    "groups": ["group shop", "groups --lag"],
    "reset": ["reset audit orders --to 2026-01-01T10:00:04Z", "reset shop orders --to earliest --execute"],
}


@contextlib.contextmanager
def scene(broker: DevBroker) -> Iterator[None]:
    """The topic ``orders`` and a group with one member that has committed 7 of 12 messages."""
    broker.create_topic("orders", 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(2):
            records = [
                Record(b'{"cart": %d}' % (2 * n + number), b"user-%d" % n, BEGAN + 1000 * n + 500 * number)
                for n in range(6)
            ]
            producer.produce("orders", records, partition=number)
    options = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 10_000, "group_instance_id": "till-1"}
    with ManagedBalancedConsumer("orders", broker.bootstrap, "shop", **options) as consumer:
        for _ in range(7):
            assert consumer.consume() is not None
        consumer.commit_offsets()
        yield
    broker.delete_topic("orders")


def printed(text: str) -> str:
    """Without what differs from run to run: ages, and the member's id."""
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "ID", text)
    text = re.sub(r"\d+ (d|h|min|s)( \d+ (h|min|s))?\b", "AGE", text)
    return re.sub(r"(?<=\S) +", " ", text)


def test_the_page(kafka44: DevBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANAGEDCONSUMER_BOOTSTRAP", kafka44.bootstrap)
    page = PAGE.read_text(encoding="utf-8")
    with scene(kafka44):
        for words in [each for group in COMMANDS.values() for each in group]:
            cli.main(shlex.split(words))
            shown = capsys.readouterr()
            printed_lines = (shown.out + shown.err).splitlines()
            if words.startswith("groups"):  # other tests have groups on this broker
                printed_lines = [line for line in printed_lines if line.split()[0] in ("GROUP", "shop")]
            lines = [f"    $ managedconsumer {words}", *("    " + line for line in printed_lines)]
            assert printed("\n".join(lines) + "\n") in printed(page)
