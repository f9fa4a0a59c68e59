"""Make a SparkSession on this machine that can use the source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Mapping

from managedconsumer.spark.workers import export_package, talk_by_unix_sockets, use_this_python

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""

_QUICK = dict.fromkeys(
    ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
)

_REGISTERED = "_managedconsumer_source"


def make_session(
    app_name: str = "managedconsumer",
    master: str = "local[2]",
    *,
    driver_memory: str = "1g",
    shuffle_partitions: int = 4,
    quick_start: bool = False,
    log_file: str | os.PathLike[str] | None = None,
    conf: Mapping[str, str] | None = None,
) -> Any:
    """Return a SparkSession with ``ManagedKafkaSource`` registered. (Spark warns if you register it again.)

    For a cluster, make the session yourself instead, and register the source.

    Settings: workers use this Python (``PYSPARK_PYTHON``; otherwise they take ``python3`` of PATH, which may have no
    pyarrow) with its installed PySpark, as each process would compile ``pyspark.zip`` again, and find this package.
    The JVM talks to them over Unix domain sockets (``spark.python.unix.domain.socket.enabled``, PySpark 4.1 and newer),
    as each task waits 40 ms over TCP. Few shuffle partitions, as each of Spark's 200 costs time in every micro-batch.
    UTC, no console progress bar, logs in ``log_file`` if given. ``quick_start`` is for jobs of a minute: the JVM
    compiles less, which halves the CPU of the start and costs speed later. ``conf`` outranks all of these.
    """
    from managedconsumer.spark.source import ManagedKafkaSource

    settings = {**_settings(driver_memory, shuffle_partitions), **(_QUICK if quick_start else {}), **(conf or {})}
    if log_file is not None:
        _log_to(Path(log_file).absolute(), settings)
    use_this_python()
    export_package(settings)
    talk_by_unix_sockets(settings, master)
    from pyspark.sql import SparkSession

    if log_file is not None:
        _start_jvm(app_name, master, settings, Path(log_file).with_suffix(".jvm.log"))
    builder: Any = SparkSession.builder
    builder = builder.master(master).appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if getattr(session, _REGISTERED, None) is not ManagedKafkaSource:  # or Spark would warn that it is replaced
        session.dataSource.register(ManagedKafkaSource)
        setattr(session, _REGISTERED, ManagedKafkaSource)
    return session


def _start_jvm(app_name: str, master: str, settings: Mapping[str, str], output: Path) -> None:
    """Start Spark's JVM, unless it runs; its output goes to a file until its log is set up."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf: Any = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name).setAll(list(settings.items()))
    with output.open("ab") as out:
        launch: Any = launch_gateway
        gateway = launch(conf, {"stdout": out, "stderr": out})
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _settings(driver_memory: str, shuffle_partitions: int) -> dict[str, str]:
    return {
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _log_to(path: Path, settings: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    config = path.with_suffix(".log4j2.properties")
    config.write_text(_LOG4J.format(path=path.as_posix()), encoding="utf-8")
    option = f"-Dlog4j2.configurationFile={config.as_uri()}"
    settings["spark.driver.extraJavaOptions"] = f"{settings.get('spark.driver.extraJavaOptions', '')} {option}".strip()
