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
    jar = f"{Path(pyspark.__file__).parent}/jars/spark-core_2.13-4.3.0.jar"
    path = f"{lib}/pyspark.zip:{lib}/py4j-0.10.9.9-src.zip:{jar}:{HERE}:/opt/a b"
    code = "import os, sys, pyspark; print(pyspark.__file__, os.environ['PYTHONPATH'], sys.argv[1:], sep='\\n')"
    found = run(os.environ["PYSPARK_PYTHON"], code, "one argument", "", PYTHONPATH=path).splitlines()
    assert found == [pyspark.__file__, f"{HERE}:/opt/a b", "['one argument', '']"]


ENABLED, SOCKETS = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"


@pytest.mark.skipif(os.name != "posix", reason="Unix domain sockets")
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_on_this_machine_the_jvm_talks_to_its_workers_over_unix_sockets(master: str) -> None:
    settings: dict[str, str] = {}
    workers.talk_by_unix_sockets(settings, master)
    assert settings[ENABLED] == "true"
    assert Path(settings[SOCKETS]).is_dir()


@pytest.mark.parametrize(
    ("master", "settings"),
    [
        ("spark://host:7077", {}),
        ("local[2]", {ENABLED: "false"}),
        ("local[2]", {SOCKETS: "/no/such/directory"}),
        ("local[2]", {SOCKETS: "/tmp" + 40 * "/."}),
    ],
    ids=["a cluster", "the user's word", "no place for sockets", "a path that is too long"],
)
def test_sockets_are_left_alone(master: str, settings: dict[str, str]) -> None:
    found = dict(settings)
    workers.talk_by_unix_sockets(found, master)
    assert found == settings


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
    code = (
        "import sys, managedconsumer.spark.source, managedconsumer.spark.options as o, managedconsumer.spark.read; "
        "o.SourceOptions.parse({'kafka.bootstrap.servers': 'x:1', 'subscribe': 'x'}, streaming=True); "
        "print(*sys.modules)"
    )
    found = set(run(sys.executable, code, PYTHONPATH=HERE).split())
    rooms = ("coordinator.assignors", "coordinator.handover", "runtime.engine", "runtime.member", "consumers", "admin")
    heavy = {name for name in found if name.startswith(tuple(f"managedconsumer.{room}" for room in rooms))}
    assert not heavy
    assert found.isdisjoint(f"managedconsumer.spark.{name}" for name in ("driver", "member", "topics", "sizes"))
    # Only typed values, claims, and a name that is not known need these.
    assert not {name for name in found if name.startswith(("managedconsumer.decoding", "managedconsumer.spark.cl"))}
    assert found.isdisjoint(("sqlite3", "difflib"))
    assert found.isdisjoint(("urllib.request", "http.client", "email.parser"))  # only a schema registry needs them


def test_the_reader_imports_nothing_that_only_tasks_or_claims_use() -> None:
    code = "import sys, managedconsumer.spark.source, managedconsumer.spark.driver; print(*sys.modules)"
    found = set(run(sys.executable, code, PYTHONPATH=HERE).split())
    assert "managedconsumer.spark.tasks" in found
    assert found.isdisjoint(("managedconsumer.spark.read", "managedconsumer.runtime.fetch_ranges", "sqlite3"))
    assert not {name for name in found if name.startswith(("managedconsumer.stores", "managedconsumer.spark.claims"))}


class Context:
    """A SparkContext, as far as it is asked."""

    def __init__(self, master: str, python: str) -> None:
        self.master, self.pythonExec, self._jvm = master, python, True

    def getConf(self) -> dict[str, str]:
        return {}


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
@pytest.mark.parametrize(
    ("master", "python", "changes"),
    [
        ("local[2]", sys.executable, True),
        ("local-cluster[2,1,1024]", "python3", True),
        ("spark://there:7077", sys.executable, False),
        ("local[2]", "/nowhere/python3", False),
    ],
)
def test_registration_takes_the_zip_off_the_path_of_a_session_on_this_machine(
    master: str, python: str, changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkContext

    from managedconsumer.spark import ManagedKafkaSource

    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    context = Context(master, python)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    assert ManagedKafkaSource.name() == "managedkafka"
    assert (context.pythonExec != python) == changes
    assert run(context.pythonExec, "import sys; print(sys.prefix)") == sys.prefix if changes else True
