"""Which Java is taken, and what a user without a usable one reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker, JavaNotFoundError, JavaTooOldError
from managedconsumer.testing.kafka._java import java_major, require_java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def fake_java(directory: Path, text: str, code: int = 0) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(tmp_path: Path, text: str, major: int | None) -> None:
    assert java_major(str(fake_java(tmp_path, text.replace("'", "")))) == major


def test_a_broken_java_is_no_java(tmp_path: Path) -> None:
    assert java_major(str(fake_java(tmp_path, 'version "17"', code=1))) is None
    assert java_major(str(tmp_path / "nothing-here")) is None


@pytest.mark.usefixtures("no_java")
def test_without_java_the_message_says_what_to_install() -> None:
    with pytest.raises(JavaNotFoundError) as caught:
        DevBroker("4.4.0").start()
    text = str(caught.value)
    assert "Apache Kafka 4.4.0 needs Java 17 or newer, and no java was found" in text
    assert "apt install openjdk-17-jre-headless" in text
    assert "JAVA_HOME" in text


@pytest.mark.usefixtures("no_java")
def test_a_java_home_that_holds_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match="no working java under it"):
        require_java(17, "Apache Kafka 4.4.0")


@pytest.mark.usefixtures("no_java")
def test_java_that_is_too_old_is_named_with_its_version_and_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = fake_java(tmp_path, 'openjdk version "11.0.2" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaTooOldError) as caught:
        DevBroker("4.4.0").start()
    assert f"needs Java 17 or newer; found only Java 11 ({java}, from JAVA_HOME)" in str(caught.value)
    assert require_java(11, "Apache Kafka 3.9.2") == str(java)


@pytest.mark.usefixtures("no_java")
def test_an_old_java_home_does_not_hide_a_new_java_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    new = fake_java(tmp_path / "new", 'openjdk version "21.0.1" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(new.parent))
    assert require_java(17, "Apache Kafka 4.4.0") == str(new)
