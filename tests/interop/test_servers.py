"""The programs of docs/howto/recipes.rst for web frameworks run in them as they stand there."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import MemoryBroker
from tests.interop.docskit import COUNT, buffered, programs
from tests.waiting import until

pytestmark = pytest.mark.slow

PAGE = "recipes.rst"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment() -> dict[str, str]:
    return {**buffered(), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""}


def committed(broker: MemoryBroker) -> bool:
    return list(broker.committed("billing").values()) == [COUNT] * 2


def test_fastapi(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    from starlette.testclient import TestClient

    names: dict[str, Any] = {}
    (program,) = programs(PAGE, "A service on asyncio (FastAPI)", broker.bootstrap)
    exec(program, names)
    printed: list[str] = []

    def all_printed() -> bool:
        printed.append(capsys.readouterr().out)  # a line may come in pieces
        return "".join(printed).count("\n") == 2 * COUNT

    with TestClient(names["app"]) as client:
        until(all_printed, 60)
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()) == (200, [])
    assert not broker.members("billing")
    assert committed(broker)


class Local(http.client.HTTPConnection):
    """To a socket in a file."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


@pytest.mark.parametrize("worker", ["sync", "gevent"])
def test_gunicorn(broker: MemoryBroker, tmp_path: Path, environment: dict[str, str], worker: str) -> None:
    """Two workers share the partitions; SIGTERM of the arbiter ends both, with everything committed."""
    service, settings = programs(PAGE, "gunicorn", broker.bootstrap)
    (tmp_path / "service.py").write_text(service, encoding="utf-8")
    (tmp_path / "gunicorn.conf.py").write_text(settings, encoding="utf-8")
    at = str(tmp_path / "s")
    command = [sys.executable, "-m", "gunicorn", "-k", worker, "--bind", f"unix:{at}"]
    with (tmp_path / "output").open("w+") as output:
        arbiter = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output)
        try:

            def ready() -> bool:
                assert arbiter.poll() is None, (tmp_path / "output").read_text()
                if len(broker.members("billing")) < 2:
                    return False
                with closing(Local(at)) as connection:
                    connection.request("GET", "/")
                    answer = connection.getresponse()
                    return (answer.status, answer.read()) == (200, b"ready\n")

            until(ready, 60)
            arbiter.send_signal(signal.SIGTERM)
            assert arbiter.wait(60) == 0
        finally:
            arbiter.kill()
            arbiter.wait()
    text = (tmp_path / "output").read_text()
    assert "Traceback" not in text
    assert not broker.members("billing"), text
    # What was handed out was committed: the offsets go on where the lines end.
    seen = [tuple(map(int, line.split())) for line in text.splitlines() if line.replace(" ", "").isdigit()]
    after = {partition: 1 + max((o for p, o in seen if p == partition), default=-1) for partition in range(2)}
    assert {tp.partition: offset for tp, offset in broker.committed("billing").items()} == after, text


SETTINGS = """
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
USE_TZ = True
"""
MODELS = """
from django.db import models

class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
    partition = models.IntegerField()
    offset = models.BigIntegerField()
    value = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["partition", "offset"], name="once")]
"""
MAIN = """
import django
from django.core.management import call_command

django.setup()
call_command("migrate", run_syncdb=True, verbosity=0)
call_command("consume_orders")
from shop.models import Order
print(sorted((order.partition, order.offset, bytes(order.value)) for order in Order.objects.all()))
"""


def test_django(broker: MemoryBroker, tmp_path: Path, environment: dict[str, str]) -> None:
    (command,) = programs(PAGE, "A command of Django", broker.bootstrap)
    commands = tmp_path / "shop" / "management" / "commands"
    commands.mkdir(parents=True)
    for folder in (commands, commands.parent, commands.parent.parent):
        (folder / "__init__.py").touch()
    (commands / "consume_orders.py").write_text(command, encoding="utf-8")
    (tmp_path / "shop" / "models.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "settings.py").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "main.py").write_text(MAIN, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env={**environment, "DJANGO_SETTINGS_MODULE": "settings"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: process.poll() is not None or committed(broker), 60)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")
    assert eval(output) == [(p, o, b"%d" % o) for p in range(2) for o in range(COUNT)]
    assert not broker.members("billing")
