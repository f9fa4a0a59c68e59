"""Fetching Kafka's jars, against a repository of our own on loopback with tiny jars in it."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import re
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from managedconsumer.cli import main
from managedconsumer.testing import DataDirError, DownloadError, UnknownKafkaVersionError
from managedconsumer.testing.kafka import _digests
from managedconsumer.testing.kafka._jars import TESTED_VERSIONS, kafka_jars, parse_version

#: A release whose digests are not in the package, so that the tiny jars of these tests are taken.
VERSION = "4.1.0"
#: Most of these tests run PySpark's Ivy, a Java program.
java = pytest.mark.java


def jar(content: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("content", content * 100)
    return buffer.getvalue()


class Repository:
    """A Maven repository; ``files`` may be changed while it serves."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        repository = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self, head: bool = False) -> None:
                body = repository.files.get(self.path)
                if not head:
                    repository.asked[self.path.rsplit("/", 1)[-1]] += 1
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                if not head:
                    self.wfile.write(body or b"")

            def do_HEAD(self) -> None:
                self.do_GET(head=True)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/maven2"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def add(self, group: str, name: str, version: str, needs: tuple[str, str, str] | None = None) -> str:
        base = f"/maven2/{group.replace('.', '/')}/{name}/{version}/{name}-{version}"
        dependency = ""
        if needs is not None:
            dependency = (
                f"<dependencies><dependency><groupId>{needs[0]}</groupId><artifactId>{needs[1]}</artifactId>"
                f"<version>{needs[2]}</version></dependency></dependencies>"
            )
        pom = (
            f'<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{dependency}</project>"
        )
        self.files[base + ".pom"] = pom.encode()
        self.files[base + ".jar"] = jar(name)
        return base + ".jar"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repository]:
    found = Repository()
    found.add("org.scala-lang", "scala-library", "2.13.18")
    found.add("org.apache.kafka", "kafka_2.13", VERSION, ("org.scala-lang", "scala-library", "2.13.18"))
    found.add("org.apache.kafka", "kafka-tools", VERSION, ("org.example", "connect-runtime", "1"))
    found.add("org.slf4j", "slf4j-simple", "1.7.36")
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MANAGEDCONSUMER_MAVEN_REPOSITORY", found.url)
    monkeypatch.setenv("MANAGEDCONSUMER_RESOLVER", "ivy")
    yield found
    found.close()


def fetch() -> list[str]:
    return [path.name for path in kafka_jars(parse_version(VERSION))]


ALL = [
    f"kafka-tools-{VERSION}.jar",
    f"kafka_2.13-{VERSION}.jar",
    "scala-library-2.13.18.jar",
    "slf4j-simple-1.7.36.jar",
]


@java
def test_fetches_once_and_tells(repository: Repository) -> None:
    told: list[str] = []
    first = kafka_jars(parse_version(VERSION), told.append)
    assert [path.name for path in first] == ALL
    assert len(told) == 2
    assert f"Apache Kafka {VERSION} is no tested release: its jars are checked against the checksums of" in told[0]
    assert f"Fetching Apache Kafka {VERSION} from the mirror {repository.url}" in told[1]
    assert "with PySpark's Ivy" in told[1]
    asked = repository.asked.copy()
    assert fetch() == ALL
    assert repository.asked == asked  # the second time came from the cache


@java
def test_a_damaged_cache_is_repaired(repository: Repository, tmp_path: Path) -> None:
    fetch()
    home = tmp_path / "cache" / f"kafka-{VERSION}"
    tools = home / ALL[0]
    tools.write_bytes(tools.read_bytes()[:-7])
    assert fetch() == ALL
    assert zipfile.ZipFile(home / ALL[0]).testzip() is None
    (home / ALL[1]).unlink()
    assert fetch() == ALL
    (home / "manifest.json").write_text("{")
    assert fetch() == ALL
    assert set(json.loads((home / "manifest.json").read_text())) == set(ALL)


@java
def test_a_damaged_download_is_not_kept_and_the_next_try_works(repository: Repository, tmp_path: Path) -> None:
    path = next(path for path in repository.files if path.endswith(ALL[1]))
    whole = repository.files[path]
    repository.files[path] = whole[: len(whole) // 2]
    with pytest.raises(DownloadError, match=r"kafka_2.13-4.1.0.jar is damaged"):
        fetch()
    assert not (tmp_path / "cache" / f"kafka-{VERSION}").exists()
    repository.files[path] = whole
    assert fetch() == ALL


@java
def test_what_a_killed_fetch_left_behind_is_removed(repository: Repository, tmp_path: Path) -> None:
    left = tmp_path / "cache" / f"kafka-{VERSION}-abcdef"
    left.mkdir(parents=True)
    (left / "half.jar").write_bytes(b"PK")
    assert fetch() == ALL
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [f"kafka-{VERSION}", f"kafka-{VERSION}.lock"]


# -- digests in the package -------------------------------------------------------------------------------------


@pytest.fixture
def digests(repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of digests of VERSION, as if it were a tested release; the repository's jars are right at first."""
    home = tmp_path / "digests"
    home.mkdir()
    right = {path.rsplit("/", 1)[1]: body for path, body in repository.files.items() if path.endswith(".jar")}
    lines = [f"{hashlib.sha256(right[name]).hexdigest()}  {name}\n" for name in ALL]
    (home / f"kafka-{VERSION}.sha256").write_text("# a comment\n" + "".join(lines))
    monkeypatch.setattr(_digests, "_HERE", home)
    return home / f"kafka-{VERSION}.sha256"


@java
@pytest.mark.usefixtures("digests")
def test_a_jar_that_somebody_replaced_is_refused(repository: Repository, tmp_path: Path) -> None:
    path = next(path for path in repository.files if path.endswith(ALL[1]))
    right, wrong = repository.files[path], jar("something else")
    repository.files[path] = wrong
    with pytest.raises(DownloadError) as caught:
        fetch()
    text = str(caught.value)
    assert f"{ALL[1]} is not the expected file" in text
    assert f"expected SHA-256 {hashlib.sha256(right).hexdigest()}, found {hashlib.sha256(wrong).hexdigest()}" in text
    assert "Remove it from the local repository" in text
    assert repository.url in text
    assert not (tmp_path / "cache" / f"kafka-{VERSION}").exists()
    repository.files[path] = right
    assert fetch() == ALL


@java
@pytest.mark.usefixtures("digests")
def test_a_jar_that_was_replaced_in_the_cache_is_fetched_again(repository: Repository, tmp_path: Path) -> None:
    """Also when the manifest beside it was replaced with it."""
    fetch()
    home = tmp_path / "cache" / f"kafka-{VERSION}"
    (home / ALL[0]).write_bytes(jar("evil"))
    manifest = json.loads((home / "manifest.json").read_text())
    manifest[ALL[0]] = hashlib.sha256((home / ALL[0]).read_bytes()).hexdigest()
    (home / "manifest.json").write_text(json.dumps(manifest))
    assert fetch() == ALL
    assert zipfile.ZipFile(home / ALL[0]).read("content").startswith(b"kafka-tools")


@java
def test_a_jar_that_is_no_part_of_the_release_is_refused(repository: Repository, digests: Path) -> None:
    digests.write_text("".join(line for line in digests.read_text().splitlines(True) if ALL[2] not in line))
    with pytest.raises(DownloadError, match=f"{ALL[2]} is no part of this release"):
        fetch()


@pytest.mark.parametrize("version", TESTED_VERSIONS)
def test_the_tested_releases_have_their_digests(version: str) -> None:
    found = _digests.trusted_digests(version)
    assert found is not None
    assert {f"kafka_2.13-{version}.jar", f"kafka-tools-{version}.jar", "slf4j-simple-1.7.36.jar"} <= found.keys()
    assert len(found) > 40
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in found.values())


@java
def test_two_processes_fetch_once(repository: Repository) -> None:
    code = (
        "from managedconsumer.testing.kafka._jars import *\n"
        f"print(len(kafka_jars(parse_version({VERSION!r}), lambda text: print(text.split()[0]))))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=120)[0].split() for process in both]
    assert sorted(printed) == [["4"], ["Apache", "Fetching", "4"]]


def test_a_release_that_does_not_exist(repository: Repository) -> None:
    with pytest.raises(UnknownKafkaVersionError, match=r"has no Apache Kafka 4.4.99 \(tested versions: 4.4") as caught:
        kafka_jars(parse_version("4.4.99"))
    assert repository.url in str(caught.value), "the repository that was asked is named"
    assert repository.asked == Counter(), "it is told at once: nothing was fetched"


@java
def test_a_repository_that_cannot_be_reached(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.close()
    with pytest.raises(DownloadError) as caught:
        fetch()
    text = str(caught.value)
    assert f"could not be fetched from the mirror {repository.url} (MANAGEDCONSUMER_MAVEN_REPOSITORY)" in text
    assert "or correct MANAGEDCONSUMER_MAVEN_REPOSITORY" in text
    assert "Maven Central" not in text
    assert "Connection refused" in text


def test_no_resolver_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        DownloadError, match=r"needs Maven .* or PySpark.*pip install 'pyspark>=4.2'.*'managedconsumer\[spark\]'"
    ):
        fetch()


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataDirError, match=r"cache directory .*/file/cache cannot be used: .*MANAGEDCONSUMER_CACHE"):
        fetch()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4.3", "'4.3' is not an Apache Kafka version; tested ones are 4.4.0 and 3.9.2"),
        ("newest", "'newest' is not an Apache Kafka version"),
        ("2.8.1", "Apache Kafka 2.8.1 is too old for the dev broker, which runs without ZooKeeper"),
    ],
)
def test_versions_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(UnknownKafkaVersionError) as caught:
        parse_version(text)
    assert message in str(caught.value)


def test_java_that_each_release_needs() -> None:
    assert parse_version("4.4.0").java_minimum == 17
    assert parse_version("3.9.2").java_minimum == 11


@java
@pytest.mark.usefixtures("repository")
def test_a_bad_version_leaves_no_directory_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MANAGEDCONSUMER_STATE", str(tmp_path / "state"))
    for words in (["start"], ["start", "--foreground"]):
        assert main(["broker", *words, "--port", "0", "--kafka-version", "4.4.99"]) == 1
        assert "has no Apache Kafka 4.4.99" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
