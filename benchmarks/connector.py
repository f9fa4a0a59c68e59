"""Spark's own Kafka connector, the newest that can be fetched, with what it needs: a directory of jars. And spark-avro.

Where its token provider is not to be had, a stand-in of a few lines is compiled: it passes settings on, and knows no
delegation tokens. For measurements only.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

#: Looked for in this order, behind the version of PySpark itself.
VERSIONS = ("4.2.0", "4.1.1", "4.1.0", "4.0.1", "4.0.0")
ARTIFACT, TOKENS = "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"
#: What ``from_avro`` needs besides PySpark.
AVRO = "spark-avro_2.13"
_TIMEOUT = 300

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>connector</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency><groupId>org.apache.spark</groupId><artifactId>{artifact}</artifactId>
<version>{version}</version><exclusions>{exclusions}</exclusions></dependency></dependencies></project>
"""
_EXCLUSION = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"
# What PySpark's own jars hold already.
_THERE = [("org.scala-lang", "*"), ("org.scala-lang.modules", "*"), ("org.apache.hadoop", "*"), ("org.slf4j", "*")]
_THERE += [
    ("org.apache.spark", "spark-tags_2.13"),
    ("com.google.code.findbugs", "*"),
    ("org.lz4", "*"),
    ("at.yawk.lz4", "*"),
]
_THERE += [("org.xerial.snappy", "*"), ("com.github.luben", "*")]

_PACKAGE = "package org.apache.spark.kafka010;\n"
_STUB = {
    "KafkaConfigUpdater": """
public class KafkaConfigUpdater {
    private final java.util.Map<String, Object> map;
    public KafkaConfigUpdater(String module, scala.collection.immutable.Map<String, Object> settings) {
        map = new java.util.HashMap<>(scala.jdk.javaapi.CollectionConverters.asJava(settings));
    }
    public KafkaConfigUpdater set(String key, Object value) { map.put(key, value); return this; }
    public KafkaConfigUpdater setIfUnset(String key, Object value) { map.putIfAbsent(key, value); return this; }
    public KafkaConfigUpdater setAuthenticationConfigIfNeeded() { return this; }
    public KafkaConfigUpdater setAuthenticationConfigIfNeeded(scala.Option<?> token) { return this; }
    public java.util.Map<String, Object> build() { return map; }
}
""",
    "KafkaRedactionUtil$": """
public final class KafkaRedactionUtil$ {
    public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();
    public <T> scala.collection.immutable.Seq<T> redactParams(scala.collection.immutable.Seq<T> params) {
        return params;
    }
}
""",
    "KafkaTokenUtil$": """
public final class KafkaTokenUtil$ {
    public static final KafkaTokenUtil$ MODULE$ = new KafkaTokenUtil$();
    public scala.Option<Object> findMatchingTokenClusterConfig(org.apache.spark.SparkConf conf, String bootstrap) {
        return scala.Option.empty();
    }
    public boolean needTokenUpdate(java.util.Map<String, Object> params, scala.Option<?> token) { return false; }
}
""",
}


class NotToBeHadError(Exception):
    """No version could be fetched, and why."""


def newest(pyspark: str, cache: Path, *, stub: bool = False) -> tuple[Path, str]:
    """A directory of jars, and what is in it; ``stub``: with the stand-in in any case.

    Raises NotToBeHadError.
    """
    if shutil.which("mvn") is None:
        raise NotToBeHadError("the command mvn is not there; give the jars with --jars")
    problem = ""
    for version in dict.fromkeys((pyspark, *VERSIONS)):
        target = cache / f"connector-{version}{'-stub' if stub else ''}"
        if target.exists():
            return target, _said(target)
        if not stub:
            problem = _fetch(ARTIFACT, version, target, [])
        if stub or (problem and TOKENS in problem):
            problem = _fetch(ARTIFACT, version, target, [("org.apache.spark", TOKENS)])
        if not problem:
            return target, _said(target)
        print(f"connector {version}: {problem}", flush=True)
    raise NotToBeHadError(f"{ARTIFACT} could not be fetched: {problem}")


def avro(pyspark: str, cache: Path) -> Path:
    """A directory with the newest spark-avro that can be fetched. Raises NotToBeHadError."""
    problem = "the command mvn is not there"
    for version in dict.fromkeys((pyspark, *VERSIONS)) if shutil.which("mvn") else ():
        target = cache / f"avro-{version}"
        if not target.exists():
            problem = _fetch(AVRO, version, target, [])
        if target.exists():
            return target
    raise NotToBeHadError(f"{AVRO} could not be fetched: {problem}")


def _said(target: Path) -> str:
    return ", ".join(sorted(jar.stem for jar in target.glob("*.jar")))


def _fetch(artifact: str, version: str, target: Path, without: Iterable[tuple[str, str]]) -> str:
    """Copy the jars to ``target``, with the stand-in where the token provider is left out; what went wrong, or ''."""
    exclusions = "".join(_EXCLUSION.format(*each) for each in (*_THERE, *without))
    with tempfile.TemporaryDirectory(prefix="connector-") as home:
        pom = Path(home) / "pom.xml"
        pom.write_text(_POM.format(artifact=artifact, version=version, exclusions=exclusions), encoding="utf-8")
        jars = Path(home) / "jars"
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        done = subprocess.run(
            ["mvn", "-B", "-q", "-U", "-f", str(pom), *goal],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()
            return next((line for line in lines if "ERROR" in line), "mvn failed")[:500]
        if without:
            _compile_stub(jars, Path(home) / "stub")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(jars), str(target))
    return ""


def _compile_stub(jars: Path, work: Path) -> None:
    import pyspark

    work.mkdir()
    for name, text in _STUB.items():
        (work / f"{name}.java").write_text(_PACKAGE + text, encoding="utf-8")
    known = f"{Path(pyspark.__file__).parent / 'jars'}/*:{jars}/*"
    sources = [str(path) for path in work.glob("*.java")]
    subprocess.run(["javac", "-nowarn", "-cp", known, "-d", str(work), *sources], check=True, timeout=_TIMEOUT)
    jar = jars / "token-provider-stand-in.jar"
    subprocess.run(["jar", "--create", "--file", str(jar), "-C", str(work), "org"], check=True, timeout=_TIMEOUT)
