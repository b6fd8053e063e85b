"""Clients and locks."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Callable, Iterator, Optional, Union, cast

from . import _oarlock
from ._call import call, drop
from ._oarlock import Guard, State
from .errors import ConfigError, Error, Lost

#: Seconds, or a `timedelta`.
Span = Union[float, timedelta]

# Inside `Locks`, `list` is a method.
_States = list[State]


def _seconds(span: Optional[Span]) -> Optional[float]:
    return span.total_seconds() if isinstance(span, timedelta) else span


@dataclass(frozen=True)
class _Options:
    ttl: Optional[float] = None
    wait: Optional[float] = None
    max_hold: Optional[float] = None
    renew: bool = True
    fair: bool = False
    reason: Optional[str] = None
    on_loss: Optional[Callable[[str], object]] = None


def _options(
    *,
    ttl: Optional[Span] = None,
    wait: Optional[Span] = None,
    max_hold: Optional[Span] = None,
    renew: bool = True,
    fair: bool = False,
    reason: Optional[str] = None,
    on_loss: Optional[Callable[[str], object]] = None,
) -> _Options:
    return _Options(_seconds(ttl), _seconds(wait), _seconds(max_hold), renew, fair, reason, on_loss)


class Lock:
    """A lock to be taken: nothing is sent before `lock()`, `try_lock()` or `with`. It may be used again, and by several
    threads or tasks at once. A lock that can be held twice (`read()`, `semaphore()`) may be inside one `with` at a time:
    make an object for each.

    `with` and `async with` release at the end. If the lock was lost by then, they raise `Lost`, unless another exception
    is on its way. `async with` also cancels its body at the moment of the loss, and raises `Lost` instead.
    """

    def __init__(self, client: _oarlock.Client, kind: str, name: str, options: _Options, permits: int = 1, take: int = 1):
        if options.on_loss is not None and not callable(options.on_loss):
            raise TypeError("on_loss is a function of one argument, the reason")
        self._client, self._kind, self._name, self._options = client, kind, name, options
        self._permits, self._take = permits, take
        self._pid = os.getpid()
        self._bodies = _Bodies(shared=kind in ("read", "semaphore"))

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._name

    def _ask(self) -> tuple[str, str, int, int, _Options]:
        return self._kind, self._name, self._permits, self._take, self._options

    def _watched(self, guard: Optional[Guard]) -> Optional[Guard]:
        if guard is not None and self._options.on_loss is not None:
            guard.on_loss(self._options.on_loss)
        return guard

    def lock(self) -> Guard:
        """Waits for the lock, at most `wait`; then raises `Busy`. Ctrl-C ends the wait."""
        return cast(Guard, self._watched(self._client.acquire(*self._ask())))

    def try_lock(self) -> Optional[Guard]:
        """Takes the lock if it is free and no claim waits for it."""
        return self._watched(self._client.acquire(*self._ask(), once=True))

    async def lock_async(self) -> Guard:
        """As `lock()`; cancelling it gives up the place in the queue."""
        return cast(Guard, self._watched(await call(self._client.acquire, *self._ask())))

    async def try_lock_async(self) -> Optional[Guard]:
        """As `try_lock()`."""
        return self._watched(await call(self._client.acquire, *self._ask(), once=True))

    def __enter__(self) -> Guard:
        with self._bodies.entering(self):
            guard = self.lock()
            self._bodies.add(threading.get_ident(), _Body(guard))
        return guard

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        guard = self._bodies.take(threading.get_ident(), self).guard
        if os.getpid() != self._pid:
            return  # A child that was forked inside: the lock is the parent's.
        lost = _lost(guard)
        try:
            guard.release()
        except Error:
            # It goes on in the background, and the lease ends the hold. An exception on its way says more.
            if error is None and lost is None:
                raise
        if lost is not None and error is None:
            raise lost

    async def __aenter__(self) -> Guard:
        with self._bodies.entering(self):
            guard = await self.lock_async()
            task = cast("asyncio.Task[object]", asyncio.current_task())
            body = _Body(guard)
            self._bodies.add(task, body)
            body.cancel_on_loss(task)
        return guard

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            # No loop runs any more: the task was abandoned.
            with suppress(Error):
                drop(self._bodies.take(None, self).guard)
            return
        body = self._bodies.take(task, self)
        was_stopped, guard = body.ends(error), body.guard
        lost = _lost(guard)
        try:
            await call(guard.release)
        except Error:
            if error is None and lost is None:
                raise
        if lost is not None and (error is None or was_stopped):
            raise lost from None

    def __repr__(self) -> str:
        return f"<oarlock.Lock {self._kind} {self._name!r}>"


def _lost(guard: Guard) -> Optional[Lost]:
    try:
        guard.check()
    except Lost as lost:
        # Released by the body itself: not a loss.
        return lost if lost.reason is not None else None
    return None


class _Body:
    """The body of a `with`. That of an `async with` is cancelled when its lock is lost."""

    def __init__(self, guard: Guard):
        self.guard = guard
        self._stop: Optional[_Stop] = None

    def cancel_on_loss(self, task: asyncio.Task[object]) -> None:
        self._stop = _Stop(task)
        self.guard.on_loss(self._stop.lost)

    def ends(self, error: Optional[BaseException]) -> bool:
        """Whether the body ended because of us."""
        return self._stop is not None and self._stop.ends(error)


class _Stop:
    """Cancels a task. The native part keeps it until the lock ends, so it keeps neither the task nor the guard alive."""

    def __init__(self, task: asyncio.Task[object]):
        self._task, self._stopped, self._over = weakref.ref(task), False, False
        self._loop = asyncio.get_running_loop()

    def lost(self, reason: str) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        task = self._task()
        if task is not None and not self._over:
            self._stopped = True
            task.cancel()

    def ends(self, error: Optional[BaseException]) -> bool:
        """Whether the body ended because of us. A cancellation that another asked for goes on."""
        self._over, task = True, self._task()
        if task is None or not self._stopped:
            return False
        # Python 3.10 cannot tell two cancellations apart.
        others = task.uncancel() if hasattr(task, "uncancel") else 0
        return isinstance(error, asyncio.CancelledError) and others == 0


class _Bodies:
    """The bodies that one lock object is inside of, by thread or task. A task that is gone takes its body with it."""

    def __init__(self, shared: bool):
        self._mutex = threading.Lock()
        self._threads: dict[int, list[_Body]] = {}
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[object], list[_Body]] = weakref.WeakKeyDictionary()
        # Of a lock that can be held twice, two bodies could be taken for each other.
        self._shared, self._entering = shared, 0

    @contextmanager
    def entering(self, lock: Lock) -> Iterator[None]:
        with self._mutex:
            if self._shared and (self._entering or self._inside()):
                raise ConfigError(f"{lock!r} is in use: make an object for each `with` of a lock that can be held twice")
            self._entering += 1
        try:
            yield
        finally:
            with self._mutex:
                self._entering -= 1

    def _inside(self) -> list[list[_Body]]:
        return [bodies for bodies in (*self._threads.values(), *self._tasks.values()) if bodies]

    def add(self, who: Union[int, asyncio.Task[object]], body: _Body) -> None:
        with self._mutex:
            if isinstance(who, int):
                self._threads.setdefault(who, []).append(body)
            else:
                self._tasks.setdefault(who, []).append(body)

    def take(self, who: Union[int, asyncio.Task[object], None], lock: Lock) -> _Body:
        """The body of this thread or task; a `with` that ends in another one has the only body that there is."""
        with self._mutex:
            inside = self._inside()
            own = self._threads.get(who) if isinstance(who, int) else self._tasks.get(who) if who is not None else None
            bodies = own or (inside[0] if len(inside) == 1 and len(inside[0]) == 1 else None)
            if bodies is not None:
                body = bodies.pop()
                self._threads = {thread: rest for thread, rest in self._threads.items() if rest}
                return body
        raise Error(f"{lock!r}: this `with` ends in another thread or task than it began in, and others are inside, too")


class RwLock:
    """A lock with many readers or one writer: `with rwlock.read() as guard`, `with rwlock.write() as guard`."""

    def __init__(self, client: _oarlock.Client, name: str, options: _Options):
        self._client, self._name, self._options = client, name, options

    def read(self) -> Lock:
        """To share it with other readers."""
        return Lock(self._client, "read", self._name, self._options)

    def write(self) -> Lock:
        """To have it alone."""
        return Lock(self._client, "write", self._name, self._options)


class Semaphore(Lock):
    """A lock of several permits. Used itself, it takes one: `with locks.semaphore("api", 5): …`."""

    def permits(self, take: int) -> Lock:
        """To take several at once."""
        return Lock(self._client, self._kind, self._name, self._options, self._permits, take)


class Locks:
    """A client of one store. It renews its locks on a thread of its own, whatever the threads of Python do.

    The options of a lock: `ttl`, the lease (30 s); `wait`, how long to wait (30 s; `math.inf` for ever); `max_hold`;
    `renew=False`; `fair`; `reason`, shown to others; `on_loss`, called with the reason when the lock is lost, on another
    thread. Spans are seconds or a `timedelta`.
    """

    def __init__(self, client: _oarlock.Client):
        self._client = client
        client.register()

    @property
    def scheme(self) -> str:
        """The scheme of the store's URL."""
        return self._client.scheme

    def mutex(
        self,
        name: str,
        *,
        ttl: Optional[Span] = None,
        wait: Optional[Span] = None,
        max_hold: Optional[Span] = None,
        renew: bool = True,
        fair: bool = False,
        reason: Optional[str] = None,
        on_loss: Optional[Callable[[str], object]] = None,
    ) -> Lock:
        """A lock with one holder at a time. It is not re-entrant."""
        options = _options(
            ttl=ttl, wait=wait, max_hold=max_hold, renew=renew, fair=fair, reason=reason, on_loss=on_loss
        )
        return Lock(self._client, "mutex", name, options)

    def rwlock(
        self,
        name: str,
        *,
        ttl: Optional[Span] = None,
        wait: Optional[Span] = None,
        max_hold: Optional[Span] = None,
        renew: bool = True,
        fair: bool = False,
        reason: Optional[str] = None,
        on_loss: Optional[Callable[[str], object]] = None,
    ) -> RwLock:
        """A lock with many readers or one writer."""
        options = _options(
            ttl=ttl, wait=wait, max_hold=max_hold, renew=renew, fair=fair, reason=reason, on_loss=on_loss
        )
        return RwLock(self._client, name, options)

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: Optional[Span] = None,
        wait: Optional[Span] = None,
        max_hold: Optional[Span] = None,
        renew: bool = True,
        fair: bool = False,
        reason: Optional[str] = None,
        on_loss: Optional[Callable[[str], object]] = None,
    ) -> Semaphore:
        """A lock of `permits`, of which each holder takes some. All programs must name the same number."""
        options = _options(
            ttl=ttl, wait=wait, max_hold=max_hold, renew=renew, fair=fair, reason=reason, on_loss=on_loss
        )
        return Semaphore(self._client, "semaphore", name, options, permits)

    def inspect(self, name: str) -> State:
        """The holders and waiters of a lock."""
        return self._client.inspect(name)

    async def inspect_async(self, name: str) -> State:
        """As `inspect()`."""
        return cast(State, await call(self._client.inspect, name))

    def list(self) -> _States:
        """All locks that are held or waited for."""
        return self._client.list()

    async def list_async(self) -> _States:
        """As `list()`."""
        return cast(_States, await call(self._client.list))

    def break_hold(self, name: str, fence: int, *, by: str, why: str = "", grace: Span = 0.0) -> bool:
        """Ends the hold with this fence, of another program; false if there is none. The holder hears of it."""
        return self._client.break_hold(name, fence, by, why, _seconds(grace) or 0.0)

    async def break_hold_async(self, name: str, fence: int, *, by: str, why: str = "", grace: Span = 0.0) -> bool:
        """As `break_hold()`."""
        return cast(bool, await call(self._client.break_hold, name, fence, by, why, _seconds(grace) or 0.0))

    def close(self, patience: Span = 5.0) -> None:
        """Releases all locks of this client, and waits for that, at most `patience`. The end of the program does so, too."""
        self._client.close(_seconds(patience) or 0.0)

    async def close_async(self, patience: Span = 5.0) -> None:
        """As `close()`."""
        await call(self._client.close, _seconds(patience) or 0.0)

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __repr__(self) -> str:
        return f"<oarlock.Locks {self.scheme}:>"


# Whatever the program still holds is released, and that is waited for.
atexit.register(_oarlock.close_all, 2.0)


def connect(
    url: str, *, ttl: Optional[Span] = None, wait: Optional[Span] = None, op_timeout: Optional[Span] = None
) -> Locks:
    """Connects to the store behind a URL. Connect after a fork, not before: a client of the parent refuses to work."""
    return Locks(_oarlock.connect(url, ttl=_seconds(ttl), wait=_seconds(wait), op_timeout=_seconds(op_timeout)))


async def connect_async(
    url: str, *, ttl: Optional[Span] = None, wait: Optional[Span] = None, op_timeout: Optional[Span] = None
) -> Locks:
    """As `connect()`."""
    spans = {"ttl": _seconds(ttl), "wait": _seconds(wait), "op_timeout": _seconds(op_timeout)}
    return Locks(await call(_oarlock.connect, url, **spans))
