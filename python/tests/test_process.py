"""Signals, forks and the end of the program: each in an interpreter of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import oarlock
from conftest import BOUND, Store, eventually


def interpreter(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# A shell starts what runs in the background with Ctrl-C ignored, and Python then leaves it so.
WAIT = """
import signal, sys, oarlock
signal.signal(signal.SIGINT, signal.default_int_handler)
oarlock.connect(sys.argv[1]).mutex(sys.argv[2], wait=float("inf")).lock()
"""


def test_ctrl_c_ends_a_wait(store: Store, locks: oarlock.Locks) -> None:
    name = store.name()
    with locks.mutex(name):
        waiter = interpreter(WAIT, store.url, name)
        eventually("it waits", lambda: locks.inspect(name).waiters)
        waiter.send_signal(signal.SIGINT)
        _, errors = waiter.communicate(timeout=BOUND)
        assert waiter.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors, errors
        eventually("it has left the queue", lambda: not locks.inspect(name).waiters)


FORK = """
import os, sys, oarlock
locks = oarlock.connect(sys.argv[1])
guard = locks.mutex(sys.argv[2]).lock()
child = os.fork()
if child == 0:
    assert not guard.is_held() and guard.time_left() == 0
    for refused in (guard.check, guard.release, locks.list, locks.mutex("other").lock):
        try:
            refused()
        except oarlock.ConfigError as error:
            assert "fork" in str(error), error
        else:
            os._exit(3)
    again = oarlock.connect(sys.argv[1])
    if again.mutex(sys.argv[2]).try_lock() is not None:
        os._exit(4)
    again.mutex("other").lock().release()
    again.close()
    del guard, locks
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
guard.check()
with oarlock.connect(sys.argv[1]) as other:
    assert other.mutex(sys.argv[2]).try_lock() is None, "the child has released the parent's lock"
assert guard.release() is True
print("well")
"""


def test_a_child_has_no_part_in_the_locks_of_its_parent(store: Store) -> None:
    output, errors = interpreter(FORK, store.url, store.name()).communicate(timeout=BOUND)
    assert output == "well\n", errors


ENDS = {
    "a client that is kept": "locks = oarlock.connect(url); g = locks.mutex(name, ttl=600).lock(); print(g.fence)",
    "a client that is not": "g = oarlock.connect(url).mutex(name, ttl=600).lock(); print(g.fence)",
    "inside with": "locks = oarlock.connect(url); print(locks.mutex(name, ttl=600).__enter__().fence)",
    "a coroutine": """
import asyncio
async def main():
    global locks, g
    locks = await oarlock.connect_async(url)
    g = await locks.mutex(name, ttl=600).lock_async()
    print(g.fence)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_the_program_releases(store: Store, locks: oarlock.Locks, how: str) -> None:
    name = store.name()
    ending = interpreter(f"import sys, oarlock; url, name = sys.argv[1:]\n{ENDS[how]}", store.url, name)
    output, errors = ending.communicate(timeout=BOUND)
    assert ending.returncode == 0, errors
    assert not locks.inspect(name).holders, "it was released before the end"
    guard = locks.mutex(name, wait=BOUND).lock()
    assert guard.fence > int(output)


LEAVE = """
import os, sys, oarlock
with oarlock.connect(sys.argv[1]).mutex(sys.argv[2]) as guard:
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    guard.check()
print("well")
"""


def test_a_child_leaves_a_with_of_its_parent_in_peace(store: Store) -> None:
    output, errors = interpreter(LEAVE, store.url, store.name()).communicate(timeout=BOUND)
    assert output == "well\n", errors
