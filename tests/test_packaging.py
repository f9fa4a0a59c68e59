"""What pip installs: everything that is needed, with a compiler and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.build


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that a build leaves nothing in the checkout; compiled files of the checkout are left out."""
    copy = tmp_path_factory.mktemp("sources") / "managedconsumer"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.rst", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
    shutil.copytree(ROOT / "managedconsumer", copy / "managedconsumer", ignore=left_out)
    return copy


def build(sources: Path, target: Path, **changes: str) -> list[str]:
    """Builds a wheel, unpacks it into ``target``, and returns the names in it."""
    work = target.with_name(target.name + "-sources")
    shutil.copytree(sources, work)
    wheels = target.with_name(target.name + "-wheel")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(work)],
        env=os.environ | {"MANAGEDCONSUMER_NO_EXTENSIONS": ""} | changes,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = wheels.glob("managedconsumer-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
        return archive.namelist()


# An editable installation would give the checkout's accelerator to a package that has none.
WITHOUT_CHECKOUT = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
"""


def run(target: Path, code: str) -> str:
    """Runs code with the installed package, away from the checkout; the compiled twin is not forced."""
    environment = {name: value for name, value in os.environ.items() if name != "MANAGEDCONSUMER_IMPL"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CHECKOUT + code],
        env=environment | {"PYTHONPATH": str(target)},
        cwd=target,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WHERE = "import managedconsumer, managedconsumer.wire.records as r; print(managedconsumer.__file__, r.__impl__)"


def test_without_a_compiler_it_installs_and_works(sources: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    names = build(sources, target, CC="/bin/false", LDSHARED="/bin/false")
    assert not [name for name in names if name.endswith((".so", ".c"))]
    where, implementation = run(target, WHERE).split()
    assert where.startswith(str(target))
    assert implementation == "python"


def test_with_a_compiler_the_accelerator_is_in_it(sources: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    names = build(sources, target, CFLAGS="-O0")  # a quarter of the compiler's time
    built = [
        name for name in names if name.startswith("managedconsumer/wire/records/_records.") and name.endswith(".so")
    ]
    accelerated = (ROOT / "managedconsumer/wire/records/_records.pyx").exists() and shutil.which("cc") is not None
    assert len(built) == accelerated
    assert run(target, WHERE).split()[1] == ("cython" if accelerated else "python")


def test_extensions_can_be_switched_off(sources: Path, tmp_path: Path) -> None:
    names = build(sources, tmp_path / "installed", MANAGEDCONSUMER_NO_EXTENSIONS="1")
    assert not [name for name in names if name.endswith((".so", ".c"))]
    for needed in (
        "managedconsumer/py.typed",
        "managedconsumer/cli/broker.py",
        "managedconsumer/testing/kafka/devbroker.py",
    ):
        assert needed in names
    packaged = {name for name in names if name.startswith("managedconsumer/") and name.endswith(".py")}
    there = {str(path.relative_to(sources)) for path in (sources / "managedconsumer").rglob("*.py")}
    assert [name for name in names if name.startswith("managedconsumer/testing/kafka/digests/kafka-4.3.0")]
    assert packaged == there, "a directory without __init__.py is not installed"
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    assert "managedconsumer = managedconsumer.cli:main" in (tmp_path / "installed" / entry).read_text()


def test_the_source_distribution_holds_what_a_reader_needs_and_no_tests(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "*.so", "*.c")
    shutil.copytree(ROOT, copy, ignore=left_out)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path / "dist")],
        cwd=copy,
        env=os.environ | {"MANAGEDCONSUMER_NO_EXTENSIONS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "dist").glob("managedconsumer-*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    there = {
        "CHANGELOG.rst",
        "LICENSE",
        "README.rst",
        "docs/pykafka.rst",
        "docs/performance.svg",
        "examples/callback.py",
    }
    there |= {"pyproject.toml", "setup.py", "managedconsumer/py.typed"}
    there |= {str(path.relative_to(copy)) for path in (copy / "managedconsumer" / "wire").glob("*.p[yx]*")}
    assert there <= names
    assert not [name for name in names if name.split("/")[0] in ("tests", "benchmarks", "changes.d")]
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]
