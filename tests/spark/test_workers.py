"""What Spark's worker processes import, and from where. No JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import managedconsumer
from managedconsumer.spark import workers

HERE = str(Path(managedconsumer.__file__).resolve().parents[1])


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


def run(python: str, code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [python, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_workers_do_without_the_zip_where_pyspark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(os, "environ", without("PYSPARK_PYTHON", "SPARK_HOME"))
    workers.use_this_python()
    lib = f"{Path(pyspark.__file__).parent}/python/lib"
    path = f"{lib}/pyspark.zip:{lib}/py4j-0.10.9.9-src.zip:{HERE}:/opt/a b"
    code = "import os, sys, pyspark; print(pyspark.__file__, os.environ['PYTHONPATH'], sys.argv[1:], sep='\\n')"
    found = run(os.environ["PYSPARK_PYTHON"], code, "one argument", "", PYTHONPATH=path).splitlines()
    assert found == [pyspark.__file__, f"{HERE}:/opt/a b", "['one argument', '']"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("PYSPARK_PYTHON", "/usr/bin/python9", "/usr/bin/python9"), ("SPARK_HOME", "/opt/spark", sys.executable)],
)
def test_the_environment_decides_and_another_spark_keeps_its_zip(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setattr(os, "environ", {**without("PYSPARK_PYTHON"), name: value})
    workers.use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == expected


def test_a_task_imports_nothing_that_it_does_not_use() -> None:
    """Each worker process pays for its imports: no membership, no assignors, no consumers, nothing of the driver."""
    code = "import sys, managedconsumer.spark.source; print(*sys.modules)"
    found = set(run(sys.executable, code, PYTHONPATH=HERE).split())
    assert "managedconsumer.spark.read" in found
    rooms = ("coordinator.assignors", "coordinator.handover", "runtime.engine", "runtime.member", "consumers", "admin")
    heavy = {name for name in found if name.startswith(tuple(f"managedconsumer.{room}" for room in rooms))}
    assert not heavy
    assert found.isdisjoint(f"managedconsumer.spark.{name}" for name in ("driver", "member", "topics", "sizes"))
    assert found.isdisjoint(("urllib.request", "http.client", "email.parser"))  # only a schema registry needs them
