"""The extensions, which depend on the machine; everything else about the package is in pyproject.toml.

The Cython accelerators are optional: without Cython, without a C compiler, or with
``MANAGEDCONSUMER_NO_EXTENSIONS=1`` in the environment the pure-Python twins are used and everything works.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
# The decoder of records, what receives them in the consuming thread, and the decoder of Avro values.
ACCELERATORS = (
    "managedconsumer/wire/records/_records.pyx",
    "managedconsumer/runtime/engine/_inline.pyx",
    "managedconsumer/decoding/_columns.pyx",
)


def extensions() -> list[Extension]:
    if os.environ.get("MANAGEDCONSUMER_NO_EXTENSIONS", "0") not in ("", "0") or not all(
        (HERE / each).exists() for each in ACCELERATORS
    ):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    # A level of optimization in CFLAGS is kept: the compiler obeys the last one that it reads.
    flags = [] if os.name == "nt" or re.search(r"(^| )-O", os.environ.get("CFLAGS", "")) else ["-O3"]
    sources = [
        Extension(each.removesuffix(".pyx").replace("/", "."), [each], extra_compile_args=flags)
        for each in ACCELERATORS
    ]
    try:
        built: list[Extension] = cythonize(sources, language_level=3)
    except Exception as error:  # noqa: BLE001 - a Cython that cannot read the source must not stop the installation
        sys.stderr.write(f"managedconsumer: the accelerators are left out: {error}\n")
        return []
    for extension in built:
        extension.optional = True  # cythonize() makes new objects and forgets this when it is set on its argument
    return built


# The GIL is the lock of managedconsumer/wire/records, in both twins, and of runtime/engine/_inline.pyx: a step of the
# lane between fetching and consuming threads (_lane.pxi, _lane_py.py) is one step to all other threads. A mutex for
# each message would cost more than a message does.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit(
        f"managedconsumer needs an interpreter with the GIL, and {sys.executable} is a free-threaded build of Python "
        f"{sys.version_info[0]}.{sys.version_info[1]}: messages could be lost or handed out twice. "
        f"Install it with the ordinary build (python{sys.version_info[0]}.{sys.version_info[1]}, without the t)."
    )

setup(license="Apache-2.0", ext_modules=extensions())
