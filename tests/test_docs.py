"""The documentation names everything that exists: no option, error code or capability is left to be guessed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import core, nodes

from managedconsumer import BalancedConsumer, KafkaClient, ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer.config import ConsumerOptions, GroupOptions
from managedconsumer.runtime.net.security import Security
from managedconsumer.testing import MemoryBroker
from tests import doc_tables
from tests.pages import text_of
from tests.processing import test_joints as joints

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def named(text: str) -> set[str]:
    """What stands in double back-quotes."""
    return set(re.findall(r"``(\w+)``", text))


def parameters(call: object) -> set[str]:
    """The names that a constructor takes."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
    return {parameter.name for parameter in found if parameter.kind in kinds and parameter.name != "self"}


@pytest.mark.parametrize("consumer", [ManagedBalancedConsumer, BalancedConsumer, SimpleConsumer, KafkaClient])
def test_every_option_is_described(consumer: type) -> None:
    described = named(text_of("options.rst"))
    missing = parameters(consumer) - described - {"ssl_config", "security"}
    assert not missing


@pytest.mark.parametrize("options", [ConsumerOptions, GroupOptions, Security])
def test_every_field_of_the_option_classes_is_described(options: type) -> None:
    described = named(text_of("options.rst"))
    missing = set(options._fields) - described - {"sasl_oauth_extensions"}  # type: ignore[attr-defined]
    assert not missing


@pytest.mark.parametrize("consumer", [ManagedBalancedConsumer, SimpleConsumer])
def test_numeric_defaults_are_the_documented_ones(consumer: type) -> None:
    text = text_of("options.rst")
    for name, parameter in inspect.signature(consumer).parameters.items():
        default = parameter.default
        if isinstance(default, bool) or not isinstance(default, int) or name in ("auto_offset_reset", "generation_id"):
            continue
        heading = re.search(rf"^``{name}`` \(.*?default (.+?)[,;)]", text, re.MULTILINE)
        assert heading, name
        written = heading.group(1)
        number = int(written.split()[0]) * (1 << 20 if "MiB" in written else 1)
        assert number == default, name


def test_the_tables_of_codes_and_metrics_are_those_of_the_code() -> None:
    assert doc_tables.differing() == [], "python -m tests.doc_tables writes them anew"
    shown = re.findall(r":file: (\w+\.csv)", text_of("errors.rst") + text_of("metrics.rst"))
    assert sorted(shown) == sorted(doc_tables.tables())


def test_every_option_of_the_spark_source_is_listed() -> None:
    from managedconsumer.spark.options import _KAFKA, _OWN

    sink = {"buffer.memory", "max.request.size", "delivery.timeout.ms"}
    source = (ROOT / "managedconsumer" / "spark" / "sink.py").read_text()  # which needs PySpark to be imported
    assert all(f'"{name}":' in source for name in sink)
    listed = set(re.findall(r"``([\w.]+)``", text_of("spark_options.csv")))
    assert set(_OWN) <= listed
    of_kafka = {name.removeprefix("kafka.") for name in listed if name.startswith("kafka.")}
    assert {name for name in of_kafka if not name.startswith("sasl.")} - {"security.protocol"} <= {*_KAFKA, *sink}


def test_the_pages_include_what_the_benchmarks_write() -> None:
    for name in ("consume", "rebalance", "spark"):
        assert text_of("performance.rst").count(f".. include:: figures/{name}_shown.txt\n") == 1
        assert text_of("figures.rst").count(f".. include:: figures/{name}.txt\n") == 1


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.rst")), ids=lambda path: path.name)
def test_a_page_mentions_no_file_that_does_not_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    mentioned = re.findall(r"``((?:examples|benchmarks|docs|tests)/[\w./]+\.\w+)(?:::\w+)?``", text)
    assert [each for each in mentioned if not (ROOT / each).exists()] == []
    links = re.findall(r"<([\w./]+\.(?:rst|csv|txt|py))(?:#[\w-]+)?>`__", text)
    assert [each for each in links if not (path.parent / each).exists()] == []


def test_the_code_names_no_page_that_does_not_exist() -> None:
    files = [
        path for part in ("managedconsumer", "tests", "benchmarks", "examples") for path in (ROOT / part).rglob("*")
    ]
    files += [ROOT / "README.rst", ROOT / "CONTRIBUTING.rst"]
    named_pages = {
        (str(path.relative_to(ROOT)), each)
        for path in files
        if path.suffix in (".py", ".pyx", ".rst", ".yaml")
        for each in re.findall(r"docs/[\w/]+\.rst", path.read_text(encoding="utf-8"))
    }
    assert {(path, each) for path, each in named_pages if not (ROOT / each).exists()} == set()


#: Only Sphinx knows their directives; tests/test_site.py builds them.
OF_THE_SITE = {"api.rst", "index.rst"}
PAGES = [page for page in (*ROOT.glob("*.rst"), *DOCS.rglob("*.rst")) if page.name not in OF_THE_SITE]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_renders(page: Path) -> None:
    """As docutils renders it for PyPI and GitHub: not one warning."""
    problems: list[str] = []
    observer = SimpleNamespace(write=problems.append)
    core.publish_doctree(
        page.read_text(encoding="utf-8"),
        source_path=str(page),
        settings_overrides={"report_level": 1, "halt_level": 5, "warning_stream": observer, "syntax_highlight": "none"},
    )
    # Each version in the change log has the same headings; nothing links to them.
    assert not [text for text in problems if page.name != "CHANGELOG.rst" or "Duplicate implicit target" not in text]


def test_the_coordinator_page_shows_a_program_that_runs() -> None:
    page = core.publish_doctree(text_of("coordinator.rst"))
    (program,) = page.findall(nodes.literal_block)
    with MemoryBroker({"orders": 2}) as broker:
        exec(program.astext().replace("localhost:9092", broker.bootstrap), {})
        assert set(broker.committed("billing")) == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
        assert broker.members("billing") == []


def test_the_joints_of_the_page_are_those_of_the_tests() -> None:
    """The page names all events and holders, and the pairs that have no test."""
    text = text_of("reliability.rst")
    part = text[text.index("Where one room meets another") : text.index("Planted mistakes")]
    events, rest = part.split("\nEvents\n")[1].split("\nHolders\n")
    holders = rest.split("\n\n")[0]
    assert re.findall(r"``([\w-]+)``", events) == list(joints.EVENTS)
    assert re.findall(r"``([\w-]+)``", holders) == list(joints.HOLDERS)
    assert {("death", holder) for holder in joints.HOLDERS if "run" in holder} == joints.EMPTY.keys()
    named_tests = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", part)
    assert len(named_tests) >= 3
    for file, name in named_tests:
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")
