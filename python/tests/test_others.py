"""Locks that other programs hold, break or take away."""

from __future__ import annotations

import subprocess
import threading
from typing import Callable

import pytest

import oarlock
from conftest import BOUND, Other, Store, eventually, program


def test_python_waits_for_another_program(
    store: Store, locks: oarlock.Locks, other: Callable[[str, str], Other]
) -> None:
    name = store.name()
    theirs = other(store.url, name)
    fence = theirs.held()
    assert locks.mutex(name).try_lock() is None
    got: list[oarlock.Guard] = []
    waiter = threading.Thread(target=lambda: got.append(locks.mutex(name, wait=BOUND).lock()))
    waiter.start()
    eventually("the store shows that Python waits", lambda: locks.inspect(name).waiters)
    assert not got
    theirs.release()
    waiter.join(BOUND)
    assert got[0].fence > fence


def test_another_program_waits_for_python(
    store: Store, locks: oarlock.Locks, other: Callable[[str, str], Other]
) -> None:
    name = store.name()
    with locks.mutex(name) as guard:
        theirs = other(store.url, name)
        eventually("the store shows that it waits", lambda: locks.inspect(name).waiters)
        assert guard.is_held()
    assert theirs.held() > guard.fence
    theirs.release()


def broken(store: Store, name: str, fence: int) -> None:
    args = [program("OARLOCK_BIN"), "break", "--url", store.url, name, "--fence", str(fence), "--grace", "0", "--yes"]
    subprocess.run(args, check=True, capture_output=True, timeout=BOUND)


def test_a_lock_that_is_broken_is_heard_of(store: Store, locks: oarlock.Locks) -> None:
    name, told = store.name(), threading.Event()
    reasons: list[str] = []

    def on_loss(reason: str) -> None:
        reasons.append(reason)
        told.set()

    with pytest.raises(oarlock.Lost) as raised:
        with locks.mutex(name, on_loss=on_loss) as guard:
            broken(store, name, guard.fence)
            reason = guard.lost(BOUND)
            assert reason is not None and "broken by" in reason
            assert not guard.is_held() and guard.loss == reason
            assert told.wait(BOUND)
    assert raised.value.reason == reasons[0] == reason and raised.value.name == name


def test_an_exception_of_the_body_is_not_hidden_by_the_loss(store: Store, locks: oarlock.Locks) -> None:
    name = store.name()
    with pytest.raises(KeyError):
        with locks.mutex(name) as guard:
            broken(store, name, guard.fence)
            guard.lost(BOUND)
            raise KeyError("mine")


def test_a_server_that_is_killed_takes_the_lock_with_it(victim: Store) -> None:
    told = threading.Event()
    locks = oarlock.connect(victim.url, op_timeout=2)
    guard = locks.mutex(victim.name(), ttl=3, on_loss=lambda reason: told.set()).lock()
    victim.kill()
    assert guard.lost(BOUND) is not None
    assert told.wait(BOUND) and not guard.is_held()
    with pytest.raises(oarlock.Lost):
        guard.check()
    with pytest.raises(oarlock.Error) as raised:
        locks.mutex(victim.name(), wait=0).lock()
    assert raised.value.kind in ("unreachable", "busy") and raised.value.retry == "later"


def test_nothing_is_told_of_a_lock_that_is_released(store: Store, locks: oarlock.Locks) -> None:
    told: list[str] = []
    guard = locks.mutex(store.name(), on_loss=told.append).lock()
    waiting = threading.Thread(target=lambda: told.extend(["lost"] if guard.lost(BOUND) else []))
    waiting.start()
    guard.release()
    waiting.join(BOUND)
    assert not waiting.is_alive() and not told
