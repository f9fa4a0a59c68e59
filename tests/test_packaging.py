"""What pip installs: everything that is needed, with a compiler and without one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import managedconsumer
from tests.pythons import SUPPORTED

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.build


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, made from a copy, so that nothing is left in the checkout."""
    place = tmp_path_factory.mktemp("sdist")
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "*.so", "*.c")
    shutil.copytree(ROOT, place / "copy", ignore=left_out, symlinks=True)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "-d", str(place / "dist")],
        cwd=place / "copy",
        env=os.environ | {"MANAGEDCONSUMER_NO_EXTENSIONS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (archive,) = (place / "dist").glob("managedconsumer-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def sources(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody builds from who has no checkout."""
    place = tmp_path_factory.mktemp("sources")
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (unpacked,) = place.iterdir()
    return unpacked


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


@pytest.fixture(scope="module")
def plain(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked wheel without the accelerator; the wheel itself is the only file in "plain-wheel" beside it."""
    target = tmp_path_factory.mktemp("plain") / "plain"
    build(sources, target, MANAGEDCONSUMER_NO_EXTENSIONS="1")
    return target


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
    built = sorted(name.split(".")[0] for name in names if name.endswith(".so"))
    accelerated = shutil.which("cc") is not None
    modules = [
        "managedconsumer/decoding/_columns",
        "managedconsumer/runtime/engine/_inline",
        "managedconsumer/wire/records/_records",
    ]
    assert built == (modules if accelerated else [])
    assert run(target, WHERE).split()[1] == ("cython" if accelerated else "python")


def test_extensions_can_be_switched_off(plain: Path) -> None:
    names = [path.relative_to(plain).as_posix() for path in plain.rglob("*") if path.is_file()]
    assert not [name for name in names if name.endswith((".so", ".c"))]
    for needed in (
        "managedconsumer/py.typed",
        "managedconsumer/cli/broker.py",
        "managedconsumer/cli/_demo/run.py",
        "managedconsumer/testing/kafka/devbroker.py",
    ):
        assert needed in names
    packaged = {name for name in names if name.startswith("managedconsumer/") and name.endswith(".py")}
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "managedconsumer").rglob("*.py")}
    there |= {f"managedconsumer/cli/_demo/{path.name}" for path in (ROOT / "examples" / "demo").glob("*.py")}
    assert [name for name in names if name.startswith("managedconsumer/testing/kafka/digests/kafka-4.4.0")]
    assert packaged == there, "a directory without __init__.py is not installed"
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    assert "managedconsumer = managedconsumer.cli:main" in (plain / entry).read_text()


def test_the_source_distribution_holds_what_a_reader_needs_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    there = {
        "CHANGELOG.rst",
        "LICENSE",
        "README.rst",
        "docs/howto/pykafka.rst",
        "docs/explanation/performance.svg",
        "examples/callback.py",
    }
    there |= {"pyproject.toml", "setup.py", "managedconsumer/py.typed"}
    there |= {str(path.relative_to(ROOT)) for path in (ROOT / "managedconsumer" / "wire").glob("*.p[yx]*")}
    assert there <= names
    assert not [name for name in names if name.split("/")[0] in ("tests", "benchmarks", "changes.d")]
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]


def test_the_bill_of_materials_is_valid_and_names_what_pip_installs(plain: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    (wheel,) = plain.with_name("plain-wheel").iterdir()
    command = [sys.executable, str(ROOT / ".ci" / "sbom.py"), str(wheel)]
    written = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert written[0] == written[1], "the same wheel gives the same document"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(written[0]) is None
    bom = json.loads(written[0])
    assert bom["metadata"]["component"]["version"] == managedconsumer.__version__
    scopes = {part["name"]: part["scope"] for part in bom["components"]}
    assert {name for name, scope in scopes.items() if scope == "required"} == {"cramjam", "crc32c"}
    assert scopes["pyarrow"] == "optional"
    assert "managedconsumer" not in scopes, "an extra that names other extras is resolved"
    (spark,) = [part["properties"] for part in bom["components"] if part["name"] == "pyspark"]
    extras = [f"managedconsumer:extra:{name}" for name in ("demo", "spark", "sparkwrite")]
    assert [each["name"] for each in spark] == extras
    assert "pytest" not in scopes, "what only the tests need is not delivered"


def test_the_change_log_begins_with_this_version() -> None:
    found = re.search(r"^(\S+) \((\d{4}-\d\d-\d\d)\)\n-+\n", (ROOT / "CHANGELOG.rst").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == managedconsumer.__version__


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_wheels_are_made_for_every_python_that_is_supported() -> None:
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert settings["build"] == [f"cp{version.replace('.', '')}-*" for version in SUPPORTED]
    assert settings["linux"]["archs"] == ["x86_64", "aarch64"]
    assert (ROOT / settings["test-command"].rpartition("{project}/")[2]).exists()
    for version in SUPPORTED:
        assert f'"Programming Language :: Python :: {version}"' in (ROOT / "pyproject.toml").read_text()


def test_a_free_threaded_python_is_refused_with_the_reason_and_the_remedy() -> None:
    code = (
        "import runpy, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1;"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs an interpreter with the GIL" in done.stderr
    assert "messages could be lost or handed out twice" in done.stderr
    assert "Install it with the ordinary build" in done.stderr
