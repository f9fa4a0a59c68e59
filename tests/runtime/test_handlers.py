"""Both handlers offer the same vocabulary with the same meaning; greenlets never block the hub."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any, Iterator

import gevent
import pytest

from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler, ThreadingHandler, default_handler
from tests.runtime.beside import Beside
from tests.waiting import until


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_event_wakes_a_worker(handler: Handler) -> None:
    go, done = handler.Event(), handler.Event()

    def work() -> None:
        go.wait()
        done.set()

    worker = handler.spawn("waiter", work)
    assert worker.is_alive()
    assert worker.name == "managedconsumer.waiter"
    assert not done.wait(0.01)
    go.set()
    assert done.wait(5)
    worker.join(5)
    assert not worker.is_alive()


def test_a_workers_exception_is_kept_and_logged(handler: Handler, caplog: pytest.LogCaptureFixture) -> None:
    worker = handler.spawn("broken", lambda: 1 // 0)
    worker.join(5)
    assert isinstance(worker.exception, ZeroDivisionError)
    assert "managedconsumer.broken" in caplog.text


def test_a_worker_that_joins_itself_does_not_hang(handler: Handler) -> None:
    mine: list[Any] = []
    ready = handler.Event()

    def work() -> None:
        ready.wait()
        mine[0].join()

    worker = handler.spawn("selfish", work)
    mine.append(worker)
    ready.set()
    worker.join(5)
    assert not worker.is_alive()
    assert worker.exception is None


def test_locks_exclude_and_rlocks_reenter(handler: Handler) -> None:
    lock, rlock = handler.Lock(), handler.RLock()
    with lock:
        assert not lock.acquire(False)
        assert not lock.acquire(timeout=0.01)
    assert lock.acquire(timeout=0.01)
    lock.release()
    with rlock, rlock:
        seen: list[bool] = []
        handler.spawn("other", lambda: seen.append(rlock.acquire(False))).join(5)
        assert seen == [False]


def test_condition_waits_times_out_and_notifies(handler: Handler) -> None:
    condition = handler.Condition()
    items: list[int] = []
    with condition:
        assert not condition.wait(0.01)

    def work() -> None:
        with condition, condition:  # twice: wait() must let go of both
            while not items:
                assert condition.wait(5)
            items.append(2)

    worker = handler.spawn("consumer", work)
    while True:
        handler.sleep(0)
        with condition:
            if not items:
                items.append(1)
            condition.notify_all()
            if len(items) == 2:
                break
    worker.join(5)
    assert items == [1, 2]


def test_condition_around_a_given_lock(handler: Handler) -> None:
    lock = handler.Lock()
    condition = handler.Condition(lock)
    woken: list[bool] = []
    inside = handler.Event()

    def work() -> None:
        with condition:
            inside.set()
            woken.append(condition.wait(5))

    workers = [handler.spawn(f"w{n}", work) for n in range(3)]
    while len(woken) < 3:
        handler.sleep(0.001)
        with lock:
            condition.notify()
    for worker in workers:
        worker.join(5)
    assert woken == [True, True, True]


def test_semaphore_counts(handler: Handler) -> None:
    semaphore = handler.Semaphore(2)
    assert semaphore.acquire()
    assert semaphore.acquire()
    assert not semaphore.acquire(timeout=0.01)
    semaphore.release()
    assert semaphore.acquire(False)


def test_queue_bounds_and_zero_means_unbounded(handler: Handler) -> None:
    bounded, free = handler.Queue(1), handler.Queue()
    bounded.put("a")
    with pytest.raises(queue.Full):
        bounded.put("b", timeout=0.01)
    assert bounded.get() == "a"
    with pytest.raises(queue.Empty):
        bounded.get(timeout=0.01)
    for n in range(100):
        free.put_nowait(n)
    assert free.qsize() == 100
    assert handler.Empty is queue.Empty


def test_idents_differ(handler: Handler) -> None:
    seen: list[int] = []
    handler.spawn("one", lambda: seen.append(handler.ident())).join(5)
    assert seen[0] != handler.ident() == handler.ident()


def test_sleep_and_now_agree(handler: Handler) -> None:
    start = handler.now()
    handler.sleep(0.02)
    assert handler.now() - start >= 0.02


@pytest.mark.gevent
def test_greenlets_run_while_another_one_computes() -> None:
    handler, go_on = GEventHandler(), threading.Event()
    other = gevent.spawn(go_on.set)
    assert handler.run_blocking(go_on.wait, 30)  # in a native thread, until a greenlet of this one says so
    other.join()


@pytest.mark.gevent
def test_what_fails_in_the_pool_is_raised_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        GEventHandler().run_blocking(lambda secret: 1 // 0, "hunter2")
    gevent.sleep(0.05)
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


def dial(handler: Handler, host: str, port: int, timeout: float = 5.0, **more: Any) -> Any:
    return net.dial(handler, host, port, timeout, net.SharedSocket(handler), **more)


def test_dialling_connects_by_name(handler: Handler, listener: socket.socket) -> None:
    with dial(handler, "localhost", listener.getsockname()[1]) as sock:
        assert sock.getpeername() == listener.getsockname()
        assert net.is_green(sock) == isinstance(handler, GEventHandler)


def test_dialling_uses_the_source_address(handler: Handler, listener: socket.socket) -> None:
    with dial(handler, *listener.getsockname(), source_address=("127.0.0.7", 0)):
        accepted, address = listener.accept()
        accepted.close()
    assert address[0] == "127.0.0.7"


class _Resolver(ThreadingHandler):
    """A resolver that answers with what a test wants."""

    def __init__(self, addresses: list[Any], delay: float = 0) -> None:
        self.addresses = addresses
        self.delay = delay

    def getaddrinfo(self, host: str, port: int) -> list[tuple[Any, ...]]:
        time.sleep(self.delay)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in self.addresses]


def test_every_address_of_a_name_is_tried(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    handler = _Resolver([("127.0.0.2", 1), ("127.0.0.3", 1), ("127.0.0.1", port)])
    with dial(handler, "broker.test", port) as sock:
        assert sock.getpeername() == ("127.0.0.1", port)


def test_all_failures_are_told() -> None:
    with pytest.raises(net.DialError) as caught:
        dial(_Resolver([("127.0.0.2", 1), ("127.0.0.3", 1)]), "broker.test", 9)
    assert "127.0.0.2:1: connection refused" in str(caught.value)
    assert "127.0.0.3:1: connection refused" in str(caught.value)


@pytest.fixture
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that does not answer a SYN: its accept queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
            fillers.append(filler)
        yield server.getsockname()
        for filler in fillers:
            filler.close()


def test_an_address_that_swallows_packets_leaves_time_for_the_next(
    listener: socket.socket, black_hole: tuple[str, int]
) -> None:
    handler = _Resolver([black_hole, listener.getsockname()])
    dial(handler, "broker.test", 9, 0.6).close()


def test_dialling_keeps_its_deadline(handler: Handler, black_hole: tuple[str, int]) -> None:
    start = time.monotonic()
    with pytest.raises(net.DialError, match="no answer in time"):
        dial(handler, *black_hole, 0.1)
    assert time.monotonic() - start < 5


def test_a_silent_resolver_is_left_behind() -> None:
    start = time.monotonic()
    with pytest.raises(socket.gaierror, match=r"no answer within 0\.1 s"):
        dial(_Resolver([], delay=3), "broker.test", 9, 0.1)
    assert time.monotonic() - start < 2


def test_close_wakes_a_dialler(handler: Handler, black_hole: tuple[str, int]) -> None:
    shared = net.SharedSocket(handler)
    dialling = Beside(net.dial, handler, *black_hole, 30, shared, handler=handler)
    until(lambda: shared.sock, sleep=handler.sleep)
    handler.sleep(0.05)
    shared.close()
    assert dialling.over(5)
    assert isinstance(dialling.error, ConnectionAbortedError)


def test_close_wakes_a_caller_that_waits_for_the_resolver() -> None:
    handler = _Resolver([], delay=3)
    shared = net.SharedSocket(handler)
    threading.Timer(0.05, shared.close).start()
    start = time.monotonic()
    with pytest.raises(ConnectionAbortedError):
        net.dial(handler, "broker.test", 9, 30, shared=shared)
    assert time.monotonic() - start < 2


def test_the_flag_of_pykafka_chooses() -> None:
    assert isinstance(default_handler(), ThreadingHandler)
    assert isinstance(default_handler(use_greenlets=True), GEventHandler)


def test_gevent_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gevent", None)
    with pytest.raises(ImportError, match=r"managedconsumer\[gevent\]"):
        GEventHandler()


@pytest.mark.slow
@pytest.mark.gevent
@pytest.mark.parametrize("name", ["ThreadingHandler", "GEventHandler"])
def test_monkey_patched_process(name: str) -> None:
    """Even when our module was imported before the patching, everything waits on the hub."""
    script = f"""
        from managedconsumer.runtime.net import sockets as net
        from managedconsumer.runtime.waiting import handlers
        from gevent import monkey
        monkey.patch_all()
        import gevent, hashlib, socket, time
        handler = handlers.{name}()
        ticks = []
        def tick():
            while True:
                ticks.append(None)
                gevent.sleep(0.005)
        def goes_on(wait, *words):
            before = len(ticks)
            wait(*words)
            assert len(ticks) > before, f"the hub stood still in {{wait}}"
        def wait_for_a_condition():
            condition = handler.Condition()
            with condition:
                condition.wait(0.1)
        def wait_for_a_queue():
            try:
                handler.Queue().get(timeout=0.1)
            except handler.Empty:
                pass
        ticker = gevent.spawn(tick)
        with socket.create_server(("127.0.0.1", 0)) as server:
            sock = net.dial(handler, "localhost", server.getsockname()[1], 5, shared=net.SharedSocket(handler))
            assert net.is_green(sock), type(sock)
            sock.close()
        goes_on(handler.sleep, 0.1)
        goes_on(handler.Event().wait, 0.1)
        goes_on(wait_for_a_condition)
        goes_on(wait_for_a_queue)
        goes_on(handler.run_blocking, hashlib.pbkdf2_hmac, "sha512", b"x", b"y", 1_000_000)
        goes_on(handler.spawn("w", handler.sleep, 0.1).join)
        ticker.kill()
        print("fine", len(ticks))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout.startswith("fine"), result.stderr
