"""The Spark examples run, and say what is true."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.spark import PageViews
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.spark.queries import ADMISSION
from tests.spark.test_spark import write_views

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Spark pickles a class that a module holds by its name; in __main__, where examples run, by value.
    module.__name__ = "__main__"
    for thing in vars(module).values():
        if isinstance(thing, type) and thing.__module__ == name:
            thing.__module__ = "__main__"
            setattr(sys.modules["__main__"], thing.__name__, thing)
    return module


@pytest.mark.usefixtures("spark")
def test_the_examples(kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    name = topic(kafka44, 4, {"retention.ms": -1})
    tally = write_views(kafka44, name, 4, PageViews(20_000, users=50))
    place = (kafka44.bootstrap, name)

    def run(name: str, *arguments: str) -> Any:
        """Without admission control each start is one batch, which counts with the next start."""
        made = example(name)
        if not ADMISSION:
            made.main(*arguments)
        return made.main(*arguments)

    rows = example("spark_batch").main(*place).collect()
    assert sum(row.records for row in rows) == 20_000

    sums = run("spark_exactly_once", *place, str(tmp_path / "sums")).collect()
    assert {(row.user.encode(), int(row.start.timestamp() * 1000)): row.views for row in sums} == dict(tally)

    assert example("spark_listener").main(*place) == 20_000

    assert example("spark_sql").main(*place).groupBy().sum("views").first()[0] == 20_000

    sent = run("spark_to_kafka", *place, topic(kafka44), str(tmp_path / "sent")).load().collect()
    assert len({bytes(row.headers[0].value) for row in sent}) == len(sent) == 20_000

    users = {user for user, _ in tally}
    assert run("spark_merge", *place, str(tmp_path / "merged")).to_pyarrow_table().num_rows == len(users)

    orders = topic(kafka44, 2, {"retention.ms": -1})
    user, start = min(tally)
    with Producer(kafka44.bootstrap) as producer:  # the last millisecond of a window
        producer.produce(orders, [Record(b"order", user, start + 5 * 60_000 - 1)])
    joined = run("spark_join", *place, orders, str(tmp_path / "joined")).collect()
    assert len(joined) == tally[user, start]

    windows = example("spark_page_views")
    if not ADMISSION:
        windows.main(*place, str(tmp_path / "windows"))
        # A batch closes windows and the next one writes them. Spark adds one without records where it can, not here.
        with Producer(kafka44.bootstrap) as producer:
            producer.produce(name, [Record(b"view", b"late", max(start for _, start in tally))], partition=0)
    windowed = windows.main(*place, str(tmp_path / "windows")).collect()
    assert windowed, "all but the newest windows"
    assert all(row["count"] == tally[row.user.encode(), int(row.window.start.timestamp() * 1000)] for row in windowed)


@pytest.mark.soak
def test_state(kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    """Not in the ordinary run: PySpark uses pandas where it is installed, and all other tests must do without it."""
    packages = str(tmp_path / "packages")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", packages, "pandas>=2.2"], check=True)
    name = topic(kafka44, 4, {"retention.ms": -1})
    tally = write_views(kafka44, name, 4, PageViews(20_000, users=50))
    place = [kafka44.bootstrap, name, str(tmp_path / "views")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), packages])}
    shown = subprocess.run(
        [sys.executable, str(EXAMPLES / "spark_state.py"), *place], env=env, check=True, capture_output=True, text=True
    ).stdout
    views: Counter[str] = Counter()
    for (user, _), count in tally.items():
        views[user.decode()] += count
    rows = [line.split("|")[1:3] for line in shown.splitlines() if line.startswith("|") and "max(" not in line]
    assert len(rows) == 10
    assert all(int(count) == views[user.strip()] for user, count in rows), rows
