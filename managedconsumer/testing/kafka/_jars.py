"""Apache Kafka's jars: fetched once from Maven Central, checked against digests of ours, kept in the user's cache.

Two resolvers can do it, whichever is there: Maven (``mvn``), or Apache Ivy, which every PySpark carries.
Environment: ``MANAGEDCONSUMER_CACHE`` (directory), ``MANAGEDCONSUMER_MAVEN_REPOSITORY`` (URL of a mirror),
``MANAGEDCONSUMER_RESOLVER`` (``mvn`` or ``ivy``: use only this one).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from managedconsumer.shown import without_login
from managedconsumer.testing.kafka._digests import digest_of, first_difference, trusted_digests
from managedconsumer.testing.kafka._errors import DataDirError, DownloadError, UnknownKafkaVersionError
from managedconsumer.testing.kafka._java import require_java
from managedconsumer.testing.kafka._owned import NotOurs, check_owned, own_directory

TESTED_VERSIONS = ("4.4.0", "3.9.2")
DEFAULT_VERSION = TESTED_VERSIONS[0]
_OLDEST = (3, 5, 0)  # the first whose combined KRaft mode and storage tool behave as the dev broker expects
_SCALA = "2.13"
_MANIFEST = "manifest.json"
_IVY_CACHE = "ivy-cache"  # outlives a broken download, so that the next try goes on where it stopped
_FETCH_TIMEOUT = 900.0
_MIRROR = "MANAGEDCONSUMER_MAVEN_REPOSITORY"
_CENTRAL = "https://repo1.maven.org/maven2/"

Progress = Callable[[str], None]


def quiet(_text: str) -> None:
    """Ignores the progress."""


@dataclass(frozen=True)
class KafkaVersion:
    """A release of Apache Kafka and what it takes to run it."""

    text: str
    numbers: tuple[int, int, int]

    @property
    def java_minimum(self) -> int:
        """Kafka 4 brokers need Java 17, Kafka 3 ones run from 11 on (8 is deprecated there)."""
        return 17 if self.numbers[0] >= 4 else 11

    @property
    def artifacts(self) -> list[tuple[str, str, str, bool]]:
        """(group, name, version, with its own dependencies).

        kafka-tools holds the command-line tools; its dependencies beyond the broker's are Kafka Connect's.
        slf4j-simple turns the log on, for all versions in the same way.
        """
        return [
            ("org.apache.kafka", f"kafka_{_SCALA}", self.text, True),
            ("org.apache.kafka", "kafka-tools", self.text, False),
            ("org.slf4j", "slf4j-simple", "1.7.36", False),
        ]


def parse_version(text: str) -> KafkaVersion:
    """Raises :class:`UnknownKafkaVersionError` for what cannot be a usable release."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", text)
    tested = " and ".join(TESTED_VERSIONS)
    if match is None:
        raise UnknownKafkaVersionError(f"{text!r} is not an Apache Kafka version; tested ones are {tested}.")
    numbers = (int(match.group(1)), int(match.group(2)), int(match.group(3)))
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise UnknownKafkaVersionError(
            f"Apache Kafka {text} is too old for the dev broker, which runs without ZooKeeper: "
            f"use {oldest} or newer (tested ones are {tested})."
        )
    return KafkaVersion(text, numbers)


def cache_dir() -> Path:
    """``$MANAGEDCONSUMER_CACHE``, else ``managedconsumer`` in ``$XDG_CACHE_HOME`` or in ``~/.cache``."""
    own = os.environ.get("MANAGEDCONSUMER_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "managedconsumer"


def kafka_jars(version: KafkaVersion, progress: Progress = quiet) -> list[Path]:
    """All jars of a broker, fetched if they are not in the cache or not what they have to be.

    Those of a tested release must have the digests that this package holds, those of others are what the repository
    says.  Safe to call from several processes at once.  Raises :class:`DownloadError`,
    :class:`UnknownKafkaVersionError`, or :class:`DataDirError` for a cache that cannot be written or that another user
    can change.
    """
    root = cache_dir().absolute()
    target = root / f"kafka-{version.text}"
    try:
        own_directory(root)
        if target.exists():
            check_owned(target)
        with locked(root / f"kafka-{version.text}.lock"):
            jars = _checked(version, target)
            if jars is None:
                _fetch(version, root, target, progress)
                jars = _checked(version, target)
    except NotOurs as error:
        raise DataDirError(
            f"The cache directory {root} is not safe to use: {error}. "
            "Set MANAGEDCONSUMER_CACHE to a directory of your own."
        ) from error
    except OSError as error:
        raise DataDirError(
            f"The cache directory {root} cannot be used ({error.strerror or error}). "
            "Set MANAGEDCONSUMER_CACHE to a directory that can be written."
        ) from error
    if jars is None:
        raise DownloadError(f"Apache Kafka {version.text} in {target} changed while it was checked; try again.")
    return jars


def _repository() -> str:
    """The repository's URL, with a slash at its end."""
    return (os.environ.get(_MIRROR) or _CENTRAL).rstrip("/") + "/"


def repository_name() -> str:
    """Return the repository's name for messages."""
    mirror = os.environ.get(_MIRROR)
    return f"the mirror {without_login(mirror)} (MANAGEDCONSUMER_MAVEN_REPOSITORY)" if mirror else "Maven Central"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an advisory lock on a file; the kernel releases it if this process dies."""
    import fcntl  # Windows has none

    with open(path, "a", encoding="ascii") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _checked(version: KafkaVersion, target: Path) -> list[Path] | None:
    """The jars, or None when any is missing or differs from what it has to be."""
    try:
        expected = trusted_digests(version.text)
        if expected is None:
            expected = json.loads((target / _MANIFEST).read_text(encoding="utf-8"))
        jars = [target / name for name in sorted(expected)]
        if jars and first_difference(jars, expected) is None:
            return jars
    except (OSError, ValueError):
        pass
    return None


def _fetch(version: KafkaVersion, root: Path, target: Path, progress: Progress) -> None:
    """Fetches into a directory beside the target, checks, and moves it into place in one step."""
    failures: list[str] = []
    trusted = trusted_digests(version.text)
    if trusted is None:
        if _is_missing(version):
            raise _unknown(version)
        progress(
            f"Apache Kafka {version.text} is no tested release: its jars are checked against the checksums of "
            f"{repository_name()} alone"
        )
    for left_behind in root.glob(f"kafka-{version.text}-*"):
        shutil.rmtree(left_behind, ignore_errors=True)  # by a fetch that was killed; we hold the lock
    for name, resolver in _resolvers():
        work = Path(tempfile.mkdtemp(prefix=f"kafka-{version.text}-", dir=root))
        try:
            progress(
                f"Fetching Apache Kafka {version.text} from {repository_name()} with {name} (about 45 MB, once) ..."
            )
            (work / "jars").mkdir()
            output = resolver(version, work)
            problem = _seal(version, work / "jars")
            if problem is None and trusted is not None:
                problem = _refusal(work / "jars", trusted)
            if problem is None or "damaged" in problem:
                shutil.rmtree(root / _IVY_CACHE, ignore_errors=True)  # done with, or full of the same damage
            if problem is None:
                shutil.rmtree(target, ignore_errors=True)
                os.replace(work / "jars", target)
                return
            if _is_unknown(version, output):
                raise _unknown(version)
            failures.append(f"{name}: {problem}\n{_telling(output)}")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    if not failures:
        raise DownloadError(
            "Fetching Apache Kafka needs Maven (the command mvn) or PySpark, which carries a resolver: "
            "pip install 'pyspark>=4.2' (the extra 'managedconsumer[spark]' brings it). Neither was found."
        )
    remedy = (
        "correct MANAGEDCONSUMER_MAVEN_REPOSITORY"
        if os.environ.get(_MIRROR)
        else "set MANAGEDCONSUMER_MAVEN_REPOSITORY to the URL of a mirror"
    )
    raise DownloadError(
        f"Apache Kafka {version.text} could not be fetched from {repository_name()}. Check the network (and proxy), or "
        f"{remedy}.\n" + "\n".join(failures)
    )


def _seal(version: KafkaVersion, jars: Path) -> str | None:
    """Checks what a resolver left and writes the manifest; returns what is wrong, if anything."""
    files = sorted(jars.glob("*.jar"))
    names = {file.name for file in files}
    expected = {f"{name}-{wanted}.jar" for _, name, wanted, _ in version.artifacts}
    missing = sorted(expected - names)
    if not any(name.startswith("scala-library-") for name in names):
        missing.append("scala-library")
    if missing:
        return f"{', '.join(missing)} did not arrive"
    for file in files:
        try:
            with zipfile.ZipFile(file) as archive:
                broken = archive.testzip()
        except (zipfile.BadZipFile, OSError) as error:
            return f"{file.name} is damaged: {error}"
        if broken is not None:
            return f"{file.name} is damaged at {broken}"
    manifest = {file.name: digest_of(file) for file in files}
    (jars / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return None


def _refusal(jars: Path, trusted: dict[str, str]) -> str | None:
    """Why jars that arrived whole are not used, and what to do."""
    difference = first_difference(jars.glob("*.jar"), trusted)
    if difference is None:
        return None
    return (
        f"damaged or replaced: {difference}. It is not used. Remove it from the local repository (~/.m2/repository), "
        f"and check who serves {repository_name()}"
    )


def _unknown(version: KafkaVersion) -> UnknownKafkaVersionError:
    tested = " and ".join(TESTED_VERSIONS)
    return UnknownKafkaVersionError(
        f"{repository_name()} has no Apache Kafka {version.text} (tested versions: {tested})."
    )


def _is_missing(version: KafkaVersion) -> bool:
    """Return whether the repository has no such release; False also when it does not answer.

    A resolver takes half a minute to find that out.
    """
    import urllib.request  # slow to import, and hardly ever needed
    from urllib.error import HTTPError

    name = version.artifacts[0][1]
    url = f"{_repository()}org/apache/kafka/{name}/{version.text}/{name}-{version.text}.pom"
    try:
        if not url.startswith(("http://", "https://")):
            return False
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).close()  # noqa: S310 (checked)
    except HTTPError as error:
        with error:  # it holds the connection
            return error.code == 404
    except (OSError, ValueError):
        pass
    return False


def _is_unknown(version: KafkaVersion, output: str) -> bool:
    """Whether the repository was reached and said that it has no such release."""
    unreachable = r"Server access error|Host \S+ not found|Could not transfer|slf4j-simple\S* (was )?not found"
    broker = re.escape(version.artifacts[0][1])
    missing = rf"{broker}\S*{re.escape(version.text)}\S*\s+(was )?not found|Could not find artifact"
    return re.search(missing, output) is not None and re.search(unreachable, output) is None


def _telling(output: str, count: int = 2) -> str:
    """Return the lines of a resolver's output that name the cause."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines()]
    causes = [line for line in lines if re.search(r"rror at url|Host .* not found|ERROR\S* \w|rror:|gave up", line)]
    return "\n".join(
        f"  {without_login(line[:600])}" for line in (causes or [line for line in lines if line.strip(" .:")])[:count]
    )


_Resolver = Callable[[KafkaVersion, Path], str]


def _resolvers() -> list[tuple[str, _Resolver]]:
    wanted = os.environ.get("MANAGEDCONSUMER_RESOLVER")
    found: list[tuple[str, _Resolver]] = []
    if wanted in (None, "", "mvn") and shutil.which("mvn"):
        found.append(("Maven", _with_maven))
    if wanted in (None, "", "ivy") and _ivy_jar() is not None:
        found.append(("PySpark's Ivy", _with_ivy))
    return found


def _run(command: list[str], work: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"gave up after {_FETCH_TIMEOUT:.0f} s"
    return done.stdout


def _with_maven(version: KafkaVersion, work: Path) -> str:
    exclude = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{wanted}</version>"
        f"{'' if transitive else exclude}</dependency>"
        for group, name, wanted, transitive in version.artifacts
    )
    mirror = os.environ.get(_MIRROR)
    repositories = ""
    if mirror:
        entry = f"<id>central</id><url>{escape(mirror)}</url>"
        repositories = (
            f"<repositories><repository>{entry}</repository></repositories>"
            f"<pluginRepositories><pluginRepository>{entry}</pluginRepository></pluginRepositories>"
        )
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>managedconsumer</groupId><artifactId>devbroker</artifactId><version>1</version>"
        f"{repositories}<dependencies>{dependencies}</dependencies></project>",
        encoding="utf-8",
    )
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    return _run(["mvn", "-B", "-C", "-U", "-q", goal, f"-DoutputDirectory={work / 'jars'}"], work)


def _ivy_jar() -> Path | None:
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return None
    return next(iter(sorted((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))), None)


def _with_ivy(version: KafkaVersion, work: Path) -> str:
    """Ivy's own command line: no SparkSession is needed for its jar."""
    ivy = _ivy_jar()
    if ivy is None:
        return "no Ivy"
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{wanted}" transitive="{str(transitive).lower()}" '
        f'conf="default-&gt;master{",runtime" if transitive else ""}"/>'
        for group, name, wanted, transitive in version.artifacts
    )
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="managedconsumer" module="devbroker" revision="1"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    attributes = escape(_repository(), {'"': "&quot;"})
    (work / "settings.xml").write_text(
        f'<ivysettings><settings defaultResolver="central"/><caches defaultCacheDir="{cache_dir() / _IVY_CACHE}"/>'
        f'<resolvers><ibiblio name="central" m2compatible="true" root="{attributes}"/></resolvers></ivysettings>',
        encoding="utf-8",
    )
    java = require_java(11, "Fetching Apache Kafka's jars with PySpark's Ivy")
    pattern = str(work / "jars" / "[artifact]-[revision](-[classifier]).[ext]")
    command = [java, "-cp", str(ivy), "org.apache.ivy.Main", "-settings", "settings.xml", "-ivy", "ivy.xml"]
    return _run([*command, "-confs", "default", "-types", "jar", "bundle", "-retrieve", pattern, "-warn"], work)
