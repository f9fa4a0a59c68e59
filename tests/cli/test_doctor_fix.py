"""``managedconsumer doctor --fix``: what it rewrites of a pykafka program, what it leaves, and what it says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import managedconsumer.errors
from managedconsumer import cli

SHOP = """\
# coding: utf-8
from pykafka import KafkaClient  # the client
from pykafka.common import OffsetType as Offsets
from pykafka.exceptions import (
    ConsumerStoppedException,  # at its end
    SocketDisconnectedError,
)
import pykafka.exceptions, json

client = KafkaClient(hosts="localhost:9092",   zookeeper_hosts="z:2181", broker_version="2.1.0")
try:
    consumer = client.topics[b"orders"].get_balanced_consumer(
        b"shop",  # Käufe
        managed=True,
        zookeeper_connect="z:2181",  # old
        fetch_error_backoff_ms=cfg("backoff"),
        auto_offset_reset=Offsets.EARLIEST,
        zookeeper=zk,
    )
    consumer.commit_offsets()
except pykafka.exceptions.KafkaException:
    raise
"""
SHOP_AFTER = """\
# coding: utf-8
from managedconsumer import KafkaClient  # the client
from managedconsumer import OffsetType as Offsets
from managedconsumer.errors import (
    ConsumerStoppedException,  # at its end
    SocketDisconnectedError,
)
import managedconsumer.errors, json

client = KafkaClient(hosts="localhost:9092")
try:
    consumer = client.topics[b"orders"].get_balanced_consumer(
        b"shop",  # Käufe
        managed=True,
        fetch_error_backoff_ms=cfg("backoff"),
        auto_offset_reset=Offsets.EARLIEST,
    )
    consumer.commit_offsets()
except managedconsumer.errors.KafkaException:
    raise
"""
#: Programs, and what becomes of them; None: nothing.
PROGRAMS: dict[str, tuple[str, str | None]] = {
    "all at once": (SHOP, SHOP_AFTER),
    "names of several modules": (
        "def f():\n    # first\n    from pykafka import KafkaClient as K, exceptions, common as c, Topic  # last\n",
        (
            "def f():\n    # first\n    from managedconsumer import KafkaClient as K, errors as exceptions, Topic\n"
            "    import managedconsumer as c  # last\n"
        ),
    ),
    "a name that is not here": (
        "from pykafka.protocol import FetchRequest\nfrom pykafka import Topic, Nothing\n",
        "from pykafka.protocol import FetchRequest\nfrom managedconsumer import Topic\nfrom pykafka import Nothing\n",
    ),
    "the package by its name": (
        (
            "import pykafka, os\nimport pykafka.common\nc = pykafka.KafkaClient('h', None)\n"
            "pykafka.common.OffsetType.LATEST\npykafka.exceptions.KafkaException\n"
        ),
        (
            "import managedconsumer.errors, os\nimport managedconsumer\nc = managedconsumer.KafkaClient('h', None)\n"
            "managedconsumer.OffsetType.LATEST\nmanagedconsumer.errors.KafkaException\n"
        ),
    ),
    "the package by its name, with a part that is not here": (
        "import pykafka\npykafka.KafkaClient('h')\npykafka.protocol.Message(b'')\n",
        None,
    ),
    "the package by another name": ("import pykafka as pk\npk.KafkaClient('h')\n", None),
    "all names": ("from pykafka import *\n", None),
    "all exceptions": ("from pykafka.exceptions import *\n", "from managedconsumer.errors import *\n"),
    "comments in a list of several modules": ("from pykafka import (\n    common,  # a\n    Topic,\n)\n", None),
    "a producer": ("from pykafka import KafkaClient\nKafkaClient('h').topics['t'].get_sync_producer()\n", None),
    "topics of another file": (
        "def f(topic):\n\treturn topic.get_simple_consumer('g', fetch_error_backoff_ms=5)\r\n",
        "def f(topic):\n\treturn topic.get_simple_consumer('g')\r\n",
    ),
    "no broker but ZooKeeper's": (
        "from pykafka.client import KafkaClient\nKafkaClient(zookeeper_hosts='z', broker_version='1')\n",
        "from managedconsumer import KafkaClient\nKafkaClient(zookeeper_hosts='z')\n",
    ),
    "another package": ("import kafka\nkafka.KafkaClient(broker_version='1')\n", None),
}


@pytest.fixture
def fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def run(*words: str) -> tuple[int, str]:
        code = cli.main(["doctor", "--fix", *words, str(tmp_path)])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def test_programs(tmp_path: Path, fix) -> None:
    files = {name: tmp_path / f"{number}.py" for number, name in enumerate(PROGRAMS)}
    for name, (before, _) in PROGRAMS.items():
        files[name].write_bytes(before.encode())
    fix("--write")
    for name, (before, after) in PROGRAMS.items():
        made = files[name].read_bytes().decode()
        assert made == (before if after is None else after), name
    _, shown = fix("--write")
    assert "0 files rewritten" in shown and "\n+" not in shown


def test_without_write_it_shows_only(tmp_path: Path, fix) -> None:
    path = tmp_path / "shop.py"
    path.write_text("from pykafka import KafkaClient\nKafkaClient('h', broker_version='1')\nconsumer.fetch()\n")
    code, shown = fix()
    assert code == 1
    assert shown.splitlines() == [
        f"--- {path} (now)",
        f"+++ {path} (fixed)",
        "@@ -1,3 +1,3 @@",
        "-from pykafka import KafkaClient",
        "-KafkaClient('h', broker_version='1')",
        "+from managedconsumer import KafkaClient",
        "+KafkaClient('h')",
        " consumer.fetch()",
        f"{path}:3: WRONG: fetch() does not exist: the loop inside is not pykafka's",
        "1 files, 1 with pykafka: 1 places have to change, 0 to look at",
        "1 files would change: --write writes them",
    ]
    assert path.read_text().startswith("from pykafka")


def test_what_it_rewrote_runs(tmp_path: Path, fix) -> None:
    path = tmp_path / "imports.py"
    path.write_text(
        "from pykafka import Broker, Cluster, KafkaClient, Partition, RangeProtocol, SslConfig, exceptions\n"
        "from pykafka.common import CompressionType, OffsetType\n"
    )
    fix("--write")
    found: dict[str, Any] = {}
    exec(path.read_text(), found)
    assert found["exceptions"] is managedconsumer.errors
    assert found["OffsetType"] is managedconsumer.OffsetType


def test_no_python(tmp_path: Path, fix) -> None:
    (tmp_path / "old.py").write_text("import pykafka\nprint 'no Python 3'\n")
    (tmp_path / "binary.py").write_bytes(b"import pykafka\n\0\xff")
    code, shown = fix("--write")
    assert code == 1
    assert "old.py:2: WRONG: this is no Python 3" in shown
    assert "binary.py:1: WRONG: this is no Python 3" in shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--fix"], "--fix needs files or directories"),
        (["--fix", "nowhere.py"], "there is no nowhere.py"),
        (["--write", "topic"], "--write needs --fix"),
        (["a", "b", "c"], "one topic and one group, not 3 names"),
    ],
)
def test_wrong_usage(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *words]) == 2
    assert text in capsys.readouterr().err


def test_without_libcst(monkeypatch: pytest.MonkeyPatch, fix) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    monkeypatch.delitem(sys.modules, "managedconsumer.admin.pykafka_fix", raising=False)
    code, shown = fix()
    assert code == 1
    assert "doctor --fix needs libcst: pip install 'managedconsumer[fix]'" in shown
