"""Applications as a user starts them: ``spark-submit``, with this package in an archive and nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

import managedconsumer

SPARK = Path(pyspark.__file__).parent
_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.testing.memory": "536870912",
    "spark.ui.enabled": "false",
}


def package(directory: Path) -> Path:
    """Make ``package.zip``, with what a wheel holds; unpacked it is in ``directory / "shipped"``."""
    inner = directory / "shipped" / "managedconsumer"
    unused = shutil.ignore_patterns("__pycache__", "*.c", "*.pyx", "build")
    shutil.copytree(Path(managedconsumer.__file__).parent, inner, ignore=unused)
    return Path(shutil.make_archive(str(directory / "package"), "zip", inner.parent))


def submit(
    master: str,
    code: str,
    arguments: tuple[str, ...],
    home: Path,
    conf: Mapping[str, str],
    *options: str,
    path: str = "",
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start ``code`` in ``home``; the process, and the file with what it and Spark say. ``path``: PYTHONPATH."""
    app, log = home / "app.py", home / "log"
    app.write_text(code)
    settings = [each for name, value in {**_CONF, **conf}.items() for each in ("--conf", f"{name}={value}")]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SPARK / "bin" / "spark-submit"), "--master", master, *settings, *options, str(app), *arguments],
            env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
            cwd=home,
            stdout=out,
            stderr=out,
        )
    return process, log
