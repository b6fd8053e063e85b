"""Real stores, and the programs on the other side: the command line and a Rust program that holds locks.

`OARLOCK_BIN` and `OARLOCK_LOCK_PROCESS` name those two; `cargo xtask test --only python` sets them.
"""

from __future__ import annotations

import glob
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterator, Optional, TypeVar

import pytest

import oarlock

#: No wait of a test ends earlier, however busy the machine is.
BOUND = 60.0
T = TypeVar("T")
_numbers = itertools.count()


def eventually(what: str, probe: Callable[[], Optional[T]]) -> T:
    """The first answer of `probe` that counts as true."""
    end = time.monotonic() + BOUND
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {BOUND} s: {what}"
        time.sleep(0.02)


class Store:
    """A store of our own, which can be killed if it is a server."""

    def __init__(self, url: str, server: Optional[subprocess.Popen[bytes]] = None):
        self.url, self.server = url, server

    def kill(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait(BOUND)

    def name(self) -> str:
        """A name that no other test uses."""
        return f"test/{os.getpid()}/{next(_numbers)}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, f"the server ended: {log.read_text()}"
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def _connects(url: str) -> Optional[oarlock.Locks]:
    try:
        return oarlock.connect(url)
    except oarlock.Error as error:
        if error.kind in ("unreachable", "denied"):
            return None
        raise


def _started(args: list[str], port: int, folder: Path, user: Optional[str] = None) -> subprocess.Popen[bytes]:
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(args, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL, user=user)
    eventually("the server listens", lambda: _answers(port, server, log))
    return server


def _redis(folder: Path) -> Store:
    port = _free_port()
    program = shutil.which("redis-server")
    assert program, "redis-server is not installed"
    args = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    return Store(f"redis://127.0.0.1:{port}", _started(args, port, folder))


def _postgres(folder: Path) -> Store:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    path = os.pathsep.join([*found, os.environ.get("PATH", "")])
    initdb, postgres = shutil.which("initdb", path=path), shutil.which("postgres", path=path)
    assert initdb and postgres, "postgresql is not installed"
    data, port, user = folder / "data", _free_port(), None
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        # Neither program runs as root.
        known = {entry.pw_name for entry in pwd.getpwall()}
        user = "postgres" if "postgres" in known else "nobody"
        shutil.chown(data, user)
        folder.chmod(0o711)
    options = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
    subprocess.run([initdb, *options, "-D", str(data)], cwd="/", check=True, capture_output=True, user=user)
    args = [postgres, "-D", str(data), "-c", f"port={port}", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    server = _started([*args, "-c", "listen_addresses=127.0.0.1"], port, folder, user)
    return Store(f"postgres://postgres@127.0.0.1:{port}/postgres", server)


def _open(kind: str, folder: Path) -> Store:
    if kind == "local":
        return Store(f"local:{folder}")
    store = _redis(folder) if kind == "redis" else _postgres(folder)
    try:
        # A server that listens may not be ready yet.
        eventually("the server answers", lambda: _connects(store.url))
    except BaseException:
        store.kill()
        raise
    return store


STORES = ["local", "redis", "postgres"]


def _serve(kind: str) -> Iterator[Store]:
    folder = Path(tempfile.mkdtemp(prefix=f"oarlock-python-{kind}-"))
    store = _open(kind, folder)
    try:
        yield store
    finally:
        if store.server is not None and store.server.poll() is None:
            store.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every store in turn."""
    yield from _serve(request.param)


@pytest.fixture(params=["redis", "postgres"])
def victim(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A server for one test, which may kill it."""
    yield from _serve(request.param)


@pytest.fixture
def locks(store: Store) -> Iterator[oarlock.Locks]:
    """A client."""
    with oarlock.connect(store.url) as locks:
        yield locks


class Other:
    """Another program, which says on its standard output when it holds the lock, and releases at the end of its input."""

    def __init__(self, args: list[str]):
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def held(self) -> int:
        """Waits until it holds the lock: its fence."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *rest = line.split()
            if word == "held":
                return int(rest[0])
        raise AssertionError(f"it ended with code {self.process.wait(BOUND)} and held nothing")

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(BOUND) == 0


def program(variable: str) -> str:
    """A program that was built with the tests."""
    path = os.environ.get(variable)
    assert path and os.access(path, os.X_OK), f"{variable} names no program: run `cargo xtask test --only python`"
    return path


@pytest.fixture(params=["command line", "Rust"])
def other(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], Other]]:
    """Starts a program that takes the lock `name` of the store behind `url`."""
    started: list[Other] = []

    def start(url: str, name: str) -> Other:
        if request.param == "Rust":
            args = [program("OARLOCK_LOCK_PROCESS"), url, name, "10000"]
        else:
            hold = ["sh", "-c", 'echo "held $OARLOCK_FENCE"; exec cat']
            args = [program("OARLOCK_BIN"), "run", "--url", url, name, "--", *hold]
        started.append(Other(args))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait(BOUND)
