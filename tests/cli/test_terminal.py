"""What others have chosen (messages, names of groups and members, times) does nothing to an operator's terminal."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, cli
from managedconsumer.cli import _show
from managedconsumer.errors import KafkaException
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.test_shown import EVIL, orders

Typed = Callable[..., tuple[int, str, str]]
GROUP = "shop\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\ngood"
OTHER = "till" + EVIL  # other clients take more than ASCII
ROOT = Path(cli.__file__).parent


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    """A member that gave itself a name, a message of orders to the terminal, and one of the year 36,536,598."""
    with MemoryBroker({"orders": 1}) as made:
        evil = EVIL.encode()
        now = int(time.time() * 1000)
        made.produce("orders", [Record(b"v\\x1b" + evil, b"k" + evil, now, [("h" + EVIL, b"x" + evil)])])
        made.produce("orders", [Record(b"\xff\x9b", None, 2**60, ()), Record(b"good", b"k", now, ())])
        client = KafkaClient(made.bootstrap, client_id="me\x1b[2J\r")
        consumer = ManagedBalancedConsumer("orders", client, GROUP, auto_offset_reset="earliest")
        with consumer:
            consumer.consume()
            consumer.commit_offsets()
            assert cli.main(["reset", OTHER, "orders", "--to", "1", "--execute", "-b", made.bootstrap]) == 0
            yield made


@pytest.fixture
def typed(broker: MemoryBroker, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Typed:
    monkeypatch.setenv("MANAGEDCONSUMER_BOOTSTRAP", broker.bootstrap)

    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        printed = capfdbinary.readouterr()
        return code, printed.out.decode("utf-8", "surrogateescape"), printed.err.decode()

    return call


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ("peek", "orders"),
        ("peek", "orders", "-f", "json"),
        ("peek", "orders", "-f", "%t %k %s %h\\n"),
        ("topics",),
        ("topics", "orders"),
        ("topics", "--json"),
        ("groups",),
        ("groups", "--lag"),
        ("groups", "--json"),
        ("group", GROUP),
        ("group", GROUP, "--json"),
        ("group", "no such" + EVIL),
        ("lag", GROUP),
        ("group", OTHER),
        ("reset", OTHER, "orders", "--to", "earliest"),
        ("reset", GROUP, "orders", "--to", "earliest", "--execute"),
        ("reset", GROUP, "orders", "--to", EVIL),
        ("doctor", "orders", GROUP),
        ("doctor", "no such" + EVIL),
        ("peek", "no such" + EVIL),
        ("peek", "orders", "--grep", "(" + EVIL),
    ],
    ids=lambda words: " ".join(words)[:40].encode("unicode_escape").decode(),
)
def test_no_command_prints_an_order(
    typed: Typed, words: tuple[str, ...], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(_show.sys.stdout, "isatty", lambda: True, raising=False)
    _, out, err = typed(*words)
    assert out + err
    for style in ("\x1b[1m", "\x1b[0m"):  # ours: the head of a table
        out = out.replace(style, "")
    assert not orders(out, "\n\t")
    assert not orders(err, "\n\t")


def test_every_message_is_a_line_whatever_is_in_it(typed: Typed) -> None:
    code, out, _ = typed("peek", "orders")
    assert code == 0
    first, second, third = (line.split("\t") for line in out.splitlines())
    assert first[4].startswith("v\\\\x1b\\x1b]52;")  # what says \x1b, and what is an escape
    assert second[2:] == ["1152921504606846976 ms", "NULL", "\\xff\\x9b"]
    assert third[4] == "good"


def test_json_has_what_was_written(typed: Typed) -> None:
    first = json.loads(typed("peek", "orders", "-f", "json", "-n", "1")[1])
    assert (first["key"], first["headers"]) == ("k" + EVIL, [{"name": "h" + EVIL, "value": "x" + EVIL}])


def test_raw_is_what_was_written(typed: Typed) -> None:
    assert typed("peek", "orders", "--raw", "-f", "%s|")[1].encode("utf-8", "surrogateescape") == (
        b"v\\x1b" + EVIL.encode() + b"|\xff\x9b|good|"
    )
    code, _, said = typed("peek", "orders", "--raw")
    assert (code, "--raw is for kcat's formats" in said) == (2, True)


def test_a_year_that_no_calendar_has_hides_nothing(typed: Typed) -> None:
    code, out, _ = typed("topics")
    assert (code, out.splitlines()[1].split()) == (0, ["orders", "1", "3", "1152921504606846976", "ms"])
    code, out, _ = typed("doctor", "orders")
    assert "its newest message is of 1152921504606846976 ms" in out
    assert "1 partitions with 3 offsets" in out


def test_a_warning_of_the_library_is_shown_by_the_same_door(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, broker: MemoryBroker
) -> None:
    import logging

    from managedconsumer.admin import admin

    def groups(*_: object, **__: object) -> None:
        logging.getLogger("managedconsumer.admin").warning("group %s", GROUP)
        raise KafkaException("no" + EVIL)

    monkeypatch.setattr(admin.Admin, "groups", groups)
    monkeypatch.setattr(logging.getLogger("managedconsumer"), "propagate", False)  # pytest's handlers are at the root
    code, _, said = typed("groups")
    assert code == 1
    assert said.startswith("group shop\\x1b]52;")
    assert not orders(said, "\n")


def test_only_one_place_prints() -> None:
    """Another print() would be another decision about what a terminal gets."""
    found = []
    for path in [*sorted(ROOT.glob("*.py")), *sorted((ROOT / "_demo").glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"):
                    found.append(f"{path.name}: {ast.unparse(node)}")
    allowed = ("_show.py: ", "peek.py: sys.stdout.write(text)", "__init__.py: print(text, file=sys.stderr)")
    rest = [each for each in found if not each.startswith(allowed)]
    assert rest == [
        "counter.py: sys.stdout.write(json.dumps({'counted': saved.tally.total(), 'next': saved.next}) + '\\n')"
    ]
