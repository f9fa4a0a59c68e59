"""A child of a fork that cleans up touches no lock and no socket of its parent's, and sends nothing."""

from __future__ import annotations

import pytest

from tests.stopkit import run

# Most of these start a program of their own, or wait for the end of a session.
pytestmark = pytest.mark.slow

FORK = """
def in_child(work, seconds=8.0):
    'Fork; the child does work() and ends as a program does. Its exit code; -1: it hangs.'
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            code = work() or 0
        except SystemExit:
            raise
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1

class Watched(MemoryBroker):
    seen = []
    def _handle(self, request, answer):
        leaves = "Leave" if request.body.get("member_epoch", 0) < 0 else ""
        self.seen.append(leaves + request.api.name)
        super()._handle(request, answer)
"""


@pytest.mark.parametrize("impl", ["python", "cython", "rdkafka"])
def test_a_child_that_cleans_up_in_any_way_sends_nothing(impl: str) -> None:
    run(
        FORK
        + """
rdkafka = sys.argv[1] == "rdkafka"
broker = Watched({"orders": 1}).start()
broker.produce("orders", [b"%d" % n for n in range(100)])
kinds = (SimpleConsumer, ManagedBalancedConsumer)
made = [kind("orders", broker.bootstrap, "g%d" % n, auto_commit_enable=True, auto_commit_interval_ms=600000,
    consumer_timeout_ms=5000, use_rdkafka=rdkafka, fetch_wait_max_ms=20000)
    for n, kind in enumerate(kinds)]
for consumer in made:
    for _ in range(11):
        consumer.consume()

def stop():
    for consumer in made:
        consumer.stop()
        consumer.close()
        consumer.stop(1.0)

def block():
    for consumer in made:
        consumer.__exit__(None, None, None)

def collect():
    import gc
    made.clear()
    globals().pop("consumer", None)
    gc.collect()

def use():
    for consumer in made:
        for call in (consumer.consume, consumer.commit_offsets, consumer.start, consumer.lag, consumer.__enter__,
                     lambda: consumer.consume_batch(5), lambda: next(iter(consumer)), lambda: consumer.position(0)):
            try:
                call()
            except err.ForkedProcessError:
                continue
            return 5
        consumer.health(), consumer.held_offsets, consumer.partitions

def leave():
    import atexit
    atexit._run_exitfuncs()

time.sleep(0.3)  # what is under way arrives
for work in (stop, block, collect, use, leave):
    before = len(broker.seen)
    assert in_child(work) == 0, work
    # The parent's own beats and fetches go on.
    seen = set(broker.seen[before:])
    assert seen <= {"Heartbeat", "ConsumerGroupHeartbeat", "Fetch", "Metadata"}, (work, seen)
for n, consumer in enumerate(made):
    for _ in range(50):
        consumer.consume()
    consumer.commit_offsets()
    assert broker.committed("g%d" % n) == {P0: 61}
    consumer.stop()
os._exit(0)
""",
        impl if impl == "rdkafka" else "own",
        impl="" if impl == "rdkafka" else impl,
    )


@pytest.mark.parametrize("impl", ["python", "cython"])
def test_forks_while_other_threads_start_stop_and_consume(impl: str) -> None:
    """Whatever lock another thread holds at the moment of the fork: the child does not wait for it."""
    run(
        FORK
        + """
broker = full_broker(4)
over = threading.Event()
current = []

def live(kind, group):
    while not over.is_set():
        consumer = kind("orders", broker.bootstrap, group, auto_start=False, auto_commit_enable=True,
            consumer_timeout_ms=200)
        current.append(consumer)
        consumer.start()
        for _ in range(300):
            if consumer.consume() is None:
                break
        consumer.commit_offsets()
        consumer.stop()

threads = [threading.Thread(target=live, args=given) for given in
    ((SimpleConsumer, "s"), (ManagedBalancedConsumer, "m"))]
for thread in threads:
    thread.start()

def clean_up():
    for consumer in current[-4:]:
        consumer.health()
        consumer.stop()
        try:
            consumer.consume()
        except (err.ForkedProcessError, err.ConsumerStoppedException):
            pass

until(lambda: len(current) > 2)
for n in range(12):
    assert in_child(clean_up, 5.0) == 0, n
    time.sleep(0.003 * n)
over.set()
for thread in threads:
    thread.join(20)
    assert not thread.is_alive()
""",
        impl=impl,
    )


@pytest.mark.parametrize("impl", ["own", "rdkafka"])
def test_a_child_that_ends_as_a_program_does(impl: str) -> None:
    """Its interpreter shuts down with its parent's consumers in it."""
    run(
        FORK
        + """
broker = Watched({"orders": 1}).start()
broker.produce("orders", [b"%d" % n for n in range(100)])
rdkafka = sys.argv[1] == "rdkafka"
consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", auto_commit_enable=True, use_rdkafka=rdkafka)
assert consumer.consume().offset == 0
faulthandler.cancel_dump_traceback_later()
pid = os.fork()
if pid:
    end = time.monotonic() + 20
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            raise SystemExit("the child hangs at its end")
        time.sleep(0.01)
    assert ended[1] == 0
    assert "LeaveGroup" not in broker.seen and "OffsetCommit" not in broker.seen
    assert consumer.consume().offset == 1
    consumer.stop()
    assert broker.committed("g") == {P0: 1}
""",
        impl,
    )


def test_a_child_that_forks_inside_start_and_stops() -> None:
    run(
        FORK
        + """
class Slow(MemoryBroker):
    def _handle(self, request, answer):
        if request.api.name != "JoinGroup":  # the group takes its time
            super()._handle(request, answer)

broker = Slow({"orders": 1}).start()
consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", auto_start=False)
threading.Thread(target=consumer.start, daemon=True).start()
until(lambda: consumer._member is not None)
assert in_child(consumer.stop) == 0
os._exit(0)
"""
    )


def test_a_client_goes_on_in_parent_and_child() -> None:
    """A KafkaClient made before the fork: the child gets connections of its own, the parent keeps its."""
    run(
        FORK
        + """
from managedconsumer import KafkaClient
broker = MemoryBroker({"orders": 3}).start()
client = KafkaClient(hosts=broker.bootstrap)
assert len(client.topics["orders"].partitions) == 3
lock = client.cluster._cluster._lock if hasattr(client.cluster, "_cluster") else None

def look():
    with client.topics["orders"].get_simple_consumer(consumer_timeout_ms=0) as consumer:
        return 0 if consumer.partitions.keys() == {0, 1, 2} else 4

assert in_child(look) == 0
assert look() == 0
"""
    )


def test_what_the_consumers_of_a_client_share_stays_with_the_parent() -> None:
    """Two consumers are quiet when the process forks: the child's consumers of the client share, and so do ours."""
    run(
        FORK
        + """
import threading
from managedconsumer import KafkaClient, SimpleConsumer
from managedconsumer.runtime.cluster import sharing
sharing.QUIET_AFTER = 0.05
broker = MemoryBroker({"orders": 1}).start()
client = KafkaClient(hosts=broker.bootstrap)

def share():
    options = {"consumer_timeout_ms": 10_000, "fetch_wait_max_ms": 5, "auto_offset_reset": "latest"}
    several = [SimpleConsumer("orders", client, **options) for _ in range(2)]
    quiet(several)
    return several

def quiet(several):
    until(lambda: not [each.name for each in threading.enumerate() if "fetcher" in each.name])

several = share()

def child():
    mine = share()
    os.write(ready_in, b"x")
    assert [each.consume().value for each in mine] == [b"new"] * 2
    for each in mine:
        each.stop()
    return 0

ready_out, ready_in = os.pipe()
threading.Thread(target=lambda: (os.read(ready_out, 1), broker.produce("orders", [b"new"])), daemon=True).start()
assert in_child(child, 30.0) == 0
assert [each.consume().value for each in several] == [b"new"] * 2
quiet(several)
for each in several:
    each.stop()
"""
    )
