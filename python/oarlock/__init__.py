"""Distributed locks over the store you already run.

    import oarlock

    locks = oarlock.connect("redis://localhost")
    with locks.mutex("deploy/prod", wait=20) as guard:
        while work_is_left():
            guard.check()                       # raises Lost; no I/O
            write(row, fence=guard.fence)       # the protected side refuses a smaller fence than it has seen

    async with locks.mutex("deploy/prod") as guard:     # cancelled and raises Lost if the lock is lost
        ...
"""

from ._locks import Lock, Locks, RwLock, Semaphore, Span, connect, connect_async
from ._oarlock import Guard, Holder, State
from .errors import Busy, ConfigError, Denied, Error, Lost, Unreachable, Unsupported

__all__ = [
    "Busy",
    "ConfigError",
    "Denied",
    "Error",
    "Guard",
    "Holder",
    "Lock",
    "Locks",
    "Lost",
    "RwLock",
    "Semaphore",
    "Span",
    "State",
    "Unreachable",
    "Unsupported",
    "connect",
    "connect_async",
]
