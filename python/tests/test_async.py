"""Locks in coroutines."""

from __future__ import annotations

import asyncio
import gc

import pytest

import oarlock
from conftest import BOUND, Store, eventually
from test_others import broken


async def until_waiting(locks: oarlock.Locks, name: str) -> None:
    async def poll() -> None:
        while not (await locks.inspect_async(name)).waiters:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), BOUND)


def test_tasks_take_turns(store: Store) -> None:
    async def main() -> None:
        inside = 0
        async with await oarlock.connect_async(store.url) as locks:
            lock = locks.mutex(store.name(), wait=BOUND)

            async def work() -> int:
                nonlocal inside
                async with lock as guard:
                    inside += 1
                    await asyncio.sleep(0.001)
                    assert inside == 1
                    inside -= 1
                    return guard.fence

            fences = await asyncio.gather(*(work() for _ in range(8)))
            assert len(set(fences)) == 8
            assert await lock.try_lock_async() is not None

    asyncio.run(main())


def test_a_wait_that_is_cancelled_leaves_the_queue(store: Store) -> None:
    async def main() -> None:
        async with await oarlock.connect_async(store.url) as locks:
            name = store.name()
            guard = await locks.mutex(name).lock_async()
            waiter = asyncio.ensure_future(locks.mutex(name, wait=BOUND).lock_async())
            await until_waiting(locks, name)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            while (await locks.inspect_async(name)).waiters:
                await asyncio.sleep(0.02)
            assert await guard.release_async() is True
            assert await locks.mutex(name).try_lock_async() is not None

    asyncio.run(asyncio.wait_for(main(), BOUND))


def test_a_wait_has_its_limit(store: Store) -> None:
    async def main() -> None:
        async with await oarlock.connect_async(store.url) as locks:
            async with locks.mutex(name := store.name()):
                with pytest.raises(oarlock.Busy):
                    await locks.mutex(name, wait=0.05).lock_async()

    asyncio.run(main())


def test_the_loss_stops_the_body(store: Store) -> None:
    async def main() -> None:
        async with await oarlock.connect_async(store.url) as locks:
            name, stopped = store.name(), False
            with pytest.raises(oarlock.Lost) as raised:
                async with locks.mutex(name) as guard:
                    try:
                        # The loss may be known before the command has ended.
                        await asyncio.to_thread(broken, store, name, guard.fence)
                        await asyncio.sleep(BOUND)
                    except asyncio.CancelledError:
                        stopped = True
                        raise
            assert stopped and raised.value.reason is not None and "broken by" in raised.value.reason
            task = asyncio.current_task()
            assert task is not None
            # The task goes on: no cancellation is left behind.
            assert getattr(task, "cancelling", lambda: 0)() == 0
            await asyncio.sleep(0)
            async with locks.mutex(name):
                pass

    asyncio.run(main())


def test_a_cancellation_from_outside_stays_one(store: Store) -> None:
    async def main() -> None:
        async with await oarlock.connect_async(store.url) as locks:
            name, entered = store.name(), asyncio.Event()

            async def work() -> None:
                async with locks.mutex(name):
                    entered.set()
                    await asyncio.sleep(BOUND)

            task = asyncio.ensure_future(work())
            await asyncio.wait_for(entered.wait(), BOUND)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await locks.mutex(name, wait=BOUND).lock_async()

    asyncio.run(main())


def test_a_loss_is_awaited(store: Store) -> None:
    async def main() -> None:
        async with await oarlock.connect_async(store.url) as locks:
            guard = await locks.mutex(name := store.name()).lock_async()
            assert await guard.lost_async(0.01) is None
            lost = asyncio.ensure_future(guard.lost_async())
            await asyncio.to_thread(broken, store, name, guard.fence)
            assert await asyncio.wait_for(lost, BOUND) is not None

    asyncio.run(main())


def test_a_lock_that_was_granted_while_its_task_was_cancelled_is_released(store: Store) -> None:
    kept: list[BaseException] = []

    async def main() -> None:
        async with await oarlock.connect_async(store.url) as locks:
            name = store.name()
            task: asyncio.Task[oarlock.Guard] = asyncio.ensure_future(locks.mutex(name, ttl=600).lock_async())
            loop = asyncio.get_running_loop()
            real = loop.call_soon_threadsafe

            def hooked(callback, *args):  # type: ignore[no-untyped-def]
                # The result is there, and the task is cancelled before it wakes up.
                def both() -> None:
                    callback(*args)
                    task.cancel()

                return real(both)

            loop.call_soon_threadsafe = hooked  # type: ignore[method-assign]
            try:
                await task
            except asyncio.CancelledError as error:
                kept.append(error)
            finally:
                loop.call_soon_threadsafe = real  # type: ignore[method-assign]
            assert kept, "the task was cancelled"
            while (await locks.inspect_async(name)).holders:
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(main(), BOUND))


def test_a_task_that_is_abandoned_releases(store: Store, locks: oarlock.Locks) -> None:
    name, client = store.name(), oarlock.connect(store.url)

    async def work() -> None:
        async with client.mutex(name, ttl=600):
            await asyncio.sleep(BOUND)

    loop = asyncio.new_event_loop()
    task = loop.create_task(work())

    async def held() -> None:
        while not (await client.inspect_async(name)).holders:
            await asyncio.sleep(0.02)

    loop.run_until_complete(asyncio.wait_for(held(), BOUND))
    # The loop ends, and no one cancels the task.
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task

    def free() -> bool:
        gc.collect()
        return not locks.inspect(name).holders

    eventually("the lock is free", free)
    client.close()


def test_a_coroutine_lists_locks_and_ends_a_hold(store: Store) -> None:
    async def main() -> None:
        async with await oarlock.connect_async(store.url) as locks:
            name = store.name()
            guard = await locks.mutex(name, ttl=BOUND).lock_async()
            assert name in [state.name for state in await locks.list_async()]
            assert name in [state.name for state in locks.list()]
            assert not await locks.break_hold_async(name, guard.fence + 1, by="a test"), "another hold"
            assert guard.is_held()
            assert await locks.break_hold_async(name, guard.fence, by="a test", why="it is in the way")
            await asyncio.wait_for(guard.lost_async(), BOUND)
            again = locks.mutex(name).lock()
            assert again.fence > guard.fence
            assert locks.break_hold(name, again.fence, by="a test")

    asyncio.run(main())
