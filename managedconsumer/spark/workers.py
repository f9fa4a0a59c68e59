"""Set the Python of Spark's workers, their path to PySpark and to this package, and their sockets to the JVM."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Spark puts its pyspark.zip first on the path, and Python compiles modules of a zip again in each process: 0.9 s of CPU
# for the reader of a query, and for the first worker. Its jar on the same path has no Python, but each process reads
# the names of its 5,000 entries twice: 0.05 s.
_SCRIPT = """\
#!/bin/sh
# Python without Spark's own archives: the same PySpark is installed, and compiled.
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
        *) kept=$kept:$entry ;;
    esac
done
PYTHONPATH=${{kept#:}}
export PYTHONPATH
exec "{python}" "$@"
"""


UNIX_SOCKETS, _SOCKETS = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"
_NAME = f".{36 * '0'}.sock"  # as long as Spark's, which are UUIDs


def use_this_python() -> None:
    """Let drivers and workers use this Python and its PySpark (POSIX), unless the environment names another one."""
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = without_zip() or sys.executable
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def leave_the_zip_out(context: Any) -> None:
    """Do what :func:`use_this_python` does for the SparkContext of a session that is made already, on this machine.

    Its functions in Python take the same interpreter as before, with the same PySpark. Otherwise nothing changes.
    """
    if runs_this_python(context.pythonExec):
        context.pythonExec = without_zip() or context.pythonExec


def runs_this_python(program: str) -> bool:
    """True if ``program``, a path or a name in ``PATH``, is this very Python, and not that of another environment."""
    found = os.path.abspath(shutil.which(program) or "")
    return os.path.dirname(found) == os.path.dirname(sys.executable) and os.path.samefile(found, sys.executable)


def without_zip() -> str | None:
    """Return a script that starts this Python without ``pyspark.zip``; None if the zip may be another PySpark."""
    found = find_spec("pyspark")
    home = None if found is None or found.origin is None else Path(found.origin).parent
    if home is None or os.name != "posix" or not (home / "python" / "lib" / "pyspark.zip").exists():
        return None
    spark_home = os.environ.get("SPARK_HOME")
    if '"' in sys.executable or (spark_home is not None and Path(spark_home).resolve() != home.resolve()):
        return None
    script = _directory() / "python"
    script.write_text(_SCRIPT.format(python=sys.executable), encoding="utf-8")
    script.chmod(0o700)
    return str(script)


def talk_by_unix_sockets(settings: dict[str, str], master: str) -> None:
    """Let the JVM and its Python workers on this machine talk over Unix domain sockets (Spark 4.1 and newer).

    Over TCP, which is Spark's default, each task's input waits 40 ms: the JVM sends it in two pieces with Nagle's
    algorithm on, and the worker's kernel delays the acknowledgement of the first.
    """
    if os.name != "posix" or not master.startswith("local") or UNIX_SOCKETS in settings:
        return
    # Spark leaves the sockets' files behind, so they get a directory that is removed.
    directory = settings.get(_SOCKETS) or str(_directory())
    if _holds_sockets(directory):
        settings.update({UNIX_SOCKETS: "true", _SOCKETS: directory})


def _holds_sockets(directory: str) -> bool:
    """True if a socket can be made there: some file systems cannot, and a path has 107 bytes at most."""
    path = os.path.join(directory, _NAME)
    try:
        with socket.socket(socket.AF_UNIX) as found:
            found.bind(path)
        os.unlink(path)
    except OSError:
        return False
    return True


@functools.cache
def _directory() -> Path:
    """A temporary directory for this process and its workers; removed when this process ends."""
    directory = Path(tempfile.mkdtemp(prefix="managedconsumer-"))
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not in its forks
        shutil.rmtree(directory, ignore_errors=True)


def export_package(settings: dict[str, str]) -> None:
    """Let the workers find this package where it is not installed, as in a checkout."""
    here = str(Path(__file__).resolve().parents[2])
    if (Path(here) / "setup.py").exists():
        known = os.environ.get("PYTHONPATH", "")
        if here not in known.split(os.pathsep):
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, known)))
        settings.setdefault("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
