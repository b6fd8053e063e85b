"""redis-py's Lock on one server, and pottery's Redlock on one or several."""

import logging
from importlib.metadata import version

import pottery
import redis
from redis.exceptions import LockError


class RedisPy:
    kinds = {"mutex"}
    lost = LockError
    version = version("redis")

    def __init__(self, url):
        self.server = redis.Redis.from_url(url)
        self.server.ping()

    def lock(self, _kind, name):
        return RedisPyLock(self.server, name)

    def force_unlock(self, name):
        # There is no call for it: users delete the key.
        return self.server.delete(name) > 0


class RedisPyLock:
    def __init__(self, server, name):
        # The token is not kept by thread, so that another thread may extend the lock.
        self.inner = redis.lock.Lock(server, name, thread_local=False)

    def acquire(self, lease_ms, wait_ms):
        self.inner.timeout = lease_ms / 1000
        return self.inner.acquire(blocking=wait_ms > 0, blocking_timeout=wait_ms / 1000 if wait_ms else None)

    def extend(self, _lease_ms):
        self.inner.reacquire()

    def owned(self):
        return self.inner.owned()

    def release(self):
        self.inner.release()


class Pottery:
    kinds = {"mutex"}
    lost = pottery.ReleaseUnlockedLock
    version = version("pottery")

    def __init__(self, urls):
        # It logs every refusal as an error.
        logging.getLogger("pottery").setLevel(logging.CRITICAL)
        self.masters = [redis.Redis.from_url(url) for url in urls.split(",")]
        for master in self.masters:
            master.ping()

    def lock(self, _kind, name):
        return PotteryLock(self.masters, name)

    def force_unlock(self, name):
        freed = [master.delete(f"redlock:{name}") for master in self.masters]
        return sum(freed) > 0


class PotteryLock:
    def __init__(self, masters, name):
        self.masters, self.name = set(masters), name
        self.inner = None

    def acquire(self, lease_ms, wait_ms):
        self.inner = pottery.Redlock(
            key=self.name, masters=self.masters, auto_release_time=lease_ms / 1000, num_extensions=1_000_000
        )
        if wait_ms:
            return self.inner.acquire(timeout=wait_ms / 1000)
        return self.inner.acquire(blocking=False)

    def extend(self, _lease_ms):
        self.inner.extend()

    def owned(self):
        return self.inner.locked() > 0

    def release(self):
        self.inner.release()


CLIENTS = {"redis-py": RedisPy, "pottery": Pottery}
