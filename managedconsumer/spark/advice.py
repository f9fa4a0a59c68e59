"""Settings that only the user of Spark can make: a query of this source fails, or is slower, without them."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Iterator

from managedconsumer.admin.values import Finding, note
from managedconsumer.spark.acknowledging import QUICKACK
from managedconsumer.spark.workers import UNIX_SOCKETS, leave_the_zip_out, runs_this_python, without_zip

log = logging.getLogger(__name__)

_SHUFFLE = "spark.sql.shuffle.partitions"
# A Spark of so many processors makes use of its 200 shuffle partitions.
_MANY = 50


def prepare() -> None:
    """Let the workers of this process's session start fast, and log once what its settings lack."""
    from pyspark.sql.utils import get_active_spark_context

    try:
        context: Any = get_active_spark_context()
    except RuntimeError:  # there is none: a client of Spark Connect, or a test
        return
    local = context.master.startswith("local")
    for each in missing(context.getConf().get, context.pythonExec, local=local):
        _log_once(*each)
    if local:
        leave_the_zip_out(context)


def missing(setting: Callable[[str, str], str | None], python: str, *, local: bool) -> Iterator[tuple[str, str, str]]:
    """Yield what a session lacks: the setting, a good value, and why.

    ``setting(name, default)``: the session's settings. ``python``: the program of its workers. ``local``: all of its
    processes are on this machine.
    """
    chosen = "PYSPARK_PYTHON" in os.environ
    if local and not chosen and not runs_this_python(python):
        found = shutil.which(python) or f"{python}, which is not in PATH"
        why = f"Spark's workers are {found}: they may have neither pyarrow nor this package"
        yield "PYSPARK_PYTHON", sys.executable, why
    if not local and not chosen and without_zip() is not None:
        script = "a script that leaves pyspark.zip out"
        yield "PYSPARK_PYTHON", script, "each query starts a Python process, which compiles the zip anew (1 s of CPU)"
    if QUICKACK is None and os.name == "posix" and setting(UNIX_SOCKETS, "false") != "true":
        yield UNIX_SOCKETS, "true", "each task of a Python function waits 40 ms over TCP (Spark 4.1 and newer)"
    cores = os.cpu_count() or 1
    if local and cores < _MANY and setting(_SHUFFLE, "200") == "200":
        yield _SHUFFLE, str(2 * cores), "each of 200 costs time in every trigger of a query that aggregates or joins"


@cache
def _log_once(name: str, value: str, why: str) -> None:
    level = logging.WARNING if name == "PYSPARK_PYTHON" and os.path.isabs(value) else logging.INFO
    log.log(level, "%s: set %s=%s", why, name, value)


def of_this_machine() -> Iterator[Finding]:
    """Report what a session lacks that is made on this machine by ``SparkSession.builder`` alone. Starts no Spark."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return
    settings = _defaults(Path(os.environ.get("SPARK_HOME") or Path(found.origin).parent))
    lacks = missing(settings.get, os.environ.get("PYSPARK_PYTHON", "python3"), local=True)
    for name, value, why in lacks:
        yield note("PySpark", why, f"set {name}={value}")


def _defaults(home: Path) -> dict[str, str]:
    """Return the settings in ``spark-defaults.conf``."""
    file = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = (line.strip().replace("=", " ", 1).split(None, 1) for line in lines if not line.lstrip().startswith("#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
