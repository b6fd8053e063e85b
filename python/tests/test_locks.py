"""What a program that uses one client sees, on every store."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Iterator

import pytest

import oarlock
from conftest import BOUND, Store, eventually


def test_a_lock_is_held_inside_with_and_free_after_it(store: Store, locks: oarlock.Locks) -> None:
    name = store.name()
    with locks.mutex(name, reason="a test") as guard:
        assert guard.is_held() and guard.name == name and guard.time_left() > 0
        guard.check()
        (holder,) = locks.inspect(name).holders
        assert holder.fence == guard.fence and holder.reason == "a test"
        assert name in [state.name for state in locks.list()]
    assert not guard.is_held() and guard.loss is None
    with pytest.raises(oarlock.Lost) as raised:
        guard.check()
    assert raised.value.reason is None, "released, not lost"
    with locks.mutex(name) as later:
        assert later.fence > guard.fence


def test_a_second_release_does_nothing(store: Store, locks: oarlock.Locks) -> None:
    name = store.name()
    with locks.mutex(name) as guard:
        assert guard.release() is True
        assert guard.release() is False
        assert not guard.is_held()
        again = locks.mutex(name).try_lock()
        assert again is not None
    assert again.is_held(), "the end of `with` releases its own lock only"


def test_a_guard_that_is_dropped_releases(store: Store, locks: oarlock.Locks) -> None:
    name = store.name()
    guard = locks.mutex(name).lock()
    del guard
    assert eventually("it is free", lambda: locks.mutex(name).try_lock()).is_held()


def test_a_busy_lock_says_who_holds_it(store: Store, locks: oarlock.Locks) -> None:
    name = store.name()
    with locks.mutex(name, reason="the other one"):
        assert locks.mutex(name).try_lock() is None
        with pytest.raises(oarlock.Busy) as raised:
            locks.mutex(name, wait=timedelta(milliseconds=50)).lock()
    error = raised.value
    assert (error.kind, error.retry, error.name, error.applied) == ("busy", "later", name, False)
    assert isinstance(error, TimeoutError) and "the other one" in str(error) and error.hint


def test_a_thread_that_waits_leaves_the_interpreter_to_others(store: Store, locks: oarlock.Locks) -> None:
    name, got = store.name(), []
    guard = locks.mutex(name).lock()
    # Fair: so that the store shows a waiter of the same client.
    waiter = threading.Thread(target=lambda: got.append(locks.mutex(name, wait=BOUND, fair=True).lock()))
    waiter.start()
    eventually("it waits", lambda: locks.inspect(name).waiters)
    # This thread goes on although the other waits inside the library.
    counted = sum(1 for _ in range(100_000))
    assert counted == 100_000 and waiter.is_alive() and not got
    guard.release()
    waiter.join(BOUND)
    assert got[0].fence > guard.fence


def test_threads_share_one_lock_object(store: Store, locks: oarlock.Locks) -> None:
    lock, inside, most, done = locks.mutex(store.name(), wait=BOUND), 0, 0, []

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with lock as guard:
                inside += 1
                most = max(most, inside)
                guard.check()
                inside -= 1
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert len(done) == 4 and most == 1


def test_readers_share_and_a_writer_does_not(store: Store, locks: oarlock.Locks) -> None:
    shared = locks.rwlock(store.name())
    with shared.read() as first, shared.read() as second:
        assert first.is_held() and second.is_held()
        assert shared.write().try_lock() is None
    with shared.write():
        assert shared.read().try_lock() is None


def test_permits_are_counted(store: Store, locks: oarlock.Locks) -> None:
    name = store.name()
    permits = locks.semaphore(name, 3)
    with permits, permits.permits(2):
        assert permits.try_lock() is None
        with pytest.raises(oarlock.ConfigError, match="in use"):
            permits.__enter__()
    with permits:
        pass
    with pytest.raises(oarlock.Error) as raised:
        permits.permits(4).lock()
    assert raised.value.kind == "too-heavy"


def test_a_memo_reaches_the_next_holder(store: Store, locks: oarlock.Locks) -> None:
    name = store.name()
    locks.mutex(name).lock().release(b"up to line 4711")
    with locks.mutex(name) as guard:
        assert guard.memo == b"up to line 4711"


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (lambda locks: locks.mutex("").lock(), oarlock.ConfigError),
        (lambda locks: locks.mutex("x", ttl=-1).lock(), ValueError),
        (lambda locks: locks.mutex("x", wait=float("nan")).lock(), ValueError),
        (lambda locks: locks.mutex("x", ttl=0.001).lock(), oarlock.ConfigError),
        (lambda locks: locks.mutex(7).lock(), TypeError),
    ],
)
def test_bad_input_is_refused(bad, kind, locks: oarlock.Locks) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(kind):
        bad(locks)


def test_a_url_that_is_wrong_is_not_a_server_that_is_down() -> None:
    with pytest.raises(oarlock.ConfigError) as wrong:
        oarlock.connect("reddis://localhost")
    assert wrong.value.retry == "never"
    with pytest.raises(oarlock.Unreachable) as down:
        oarlock.connect("redis://127.0.0.1:1")
    assert down.value.retry == "later" and isinstance(down.value, ConnectionError)


def test_a_client_that_was_closed_refuses(store: Store) -> None:
    locks = oarlock.connect(store.url)
    name = store.name()
    guard, entered = locks.mutex(name, ttl=600).lock(), locks.mutex(store.name(), ttl=600)
    with entered as inside:
        locks.close()
        assert not guard.is_held() and not inside.is_held()
        with oarlock.connect(store.url) as other:
            assert not other.inspect(name).holders and not other.inspect(inside.name).holders
    assert guard.release() is False
    with pytest.raises(oarlock.Unreachable) as raised:
        locks.mutex(store.name()).lock()
    assert raised.value.kind == "closed"


def test_a_with_that_ends_in_another_thread_releases_its_own_lock(store: Store, locks: oarlock.Locks) -> None:
    lock, other = locks.mutex(store.name()), locks.semaphore(store.name(), 2)

    def body(lock: oarlock.Lock) -> Iterator[oarlock.Guard]:
        with lock as guard:
            yield guard

    generator = body(lock)
    guard = next(generator)
    with other as mine:
        closing = threading.Thread(target=generator.close)
        closing.start()
        closing.join(BOUND)
        assert mine.is_held() and not guard.is_held()
    with lock:
        pass


def test_a_with_that_cannot_know_its_lock_says_so(store: Store, locks: oarlock.Locks) -> None:
    lock, taken, leave = locks.mutex(store.name(), wait=BOUND), threading.Event(), threading.Event()

    def work() -> None:
        with lock:
            taken.set()
            leave.wait(BOUND)

    second = threading.Thread(target=work)
    failed: list[oarlock.Error] = []

    def end() -> None:
        try:
            lock.__exit__(None, None, None)
        except oarlock.Error as error:
            failed.append(error)

    third = threading.Thread(target=end)
    with pytest.raises(oarlock.Lost):
        with lock as guard:
            locks.break_hold(guard.name, guard.fence, by="a test")
            assert guard.lost(BOUND)
            # Two are inside now: one that has lost the lock, and one that has it.
            second.start()
            assert taken.wait(BOUND)
            third.start()
            third.join(BOUND)
            assert failed and "another thread" in str(failed[0])
    leave.set()
    second.join(BOUND)
    assert not second.is_alive()


def test_a_callback_is_a_function(locks: oarlock.Locks) -> None:
    with pytest.raises(TypeError):
        locks.mutex("x", on_loss=5)  # type: ignore[arg-type]
