"""How a coroutine waits for a call of the native part."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Optional

from ._oarlock import Guard, Pending


async def call(start: Callable[..., Pending], *args: Any, **options: Any) -> Any:
    """Starts a call, and waits for it. A coroutine that is cancelled gives it up: a lock that was granted meanwhile is
    released, because its guard reaches no caller."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Optional[BaseException]) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def done(value: Any, error: Optional[BaseException]) -> None:
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # The loop is closed: no task waits.

    pending = start(*args, **options, done=done)
    try:
        return await future
    except asyncio.CancelledError:
        pending.cancel()
        if future.done() and not future.cancelled() and future.exception() is None:
            drop(future.result())
        raise


def drop(value: object) -> None:
    """Releases a guard in the background. A reference to it may live on in a traceback."""
    if isinstance(value, Guard):
        value.release(done=lambda *_: None)
