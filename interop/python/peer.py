"""A peer in Python: see ../README.md for its protocol.

usage: peer.py <client> <url>
"""

import queue
import sys
import threading
import time

import file_locks
import kazoo_locks
import redis_locks
import sql_locks

LEASE_MS = 10_000
WAIT_MS = 60_000
POLL_SECONDS = 0.01

CLIENTS = {**file_locks.CLIENTS, **kazoo_locks.CLIENTS, **redis_locks.CLIENTS, **sql_locks.CLIENTS}

now = time.monotonic_ns


class Cannot(Exception):
    """This client has no such thing."""


class Hold:
    """One lock in hand, kept alive where the library leaves that to its users."""

    def __init__(self, lock, lease):
        self.lock = lock
        self.why = None
        self.over = threading.Event()
        renewed, _, span = lease.rpartition(":")
        self.lease_ms = int(span)
        self.keeper = threading.Thread(target=self.keep, daemon=True) if renewed else None

    def acquire(self, wait_ms):
        if not self.lock.acquire(self.lease_ms, wait_ms):
            return False
        if self.keeper:
            self.keeper.start()
        return True

    def keep(self):
        while not self.over.wait(self.lease_ms / 3000):
            try:
                self.lock.extend(self.lease_ms)
            except Exception as error:
                self.why = plain(error)
                return

    def loss(self):
        if self.why is None and not self.lock.owned():
            self.why = "its key is no longer ours"
        return self.why

    def release(self):
        self.over.set()
        if self.keeper:
            self.keeper.join()
        self.lock.release()


class Worker(threading.Thread):
    """The commands of one handle, one after another, on one thread."""

    def __init__(self, peer, handle):
        super().__init__(daemon=True)
        self.peer, self.handle = peer, handle
        self.commands = queue.Queue()
        self.hold = None

    def run(self):
        while True:
            verb, args = self.commands.get()
            try:
                self.peer.say(getattr(self, verb)(*args))
            except Cannot as why:
                self.peer.say(f"cannot {self.handle} {why}")
            except Exception as error:
                self.peer.say(f"error {self.handle} {plain(error)}")

    def new_lock(self, kind, name):
        if kind.partition(":")[0] not in self.peer.client.kinds:
            raise Cannot(f"{self.peer.name} has no {kind} lock")
        return self.peer.client.lock(kind, name)

    def lock(self, kind, name, lease, wait):
        hold = Hold(self.new_lock(kind, name), lease)
        if not hold.acquire(int(wait)):
            return f"busy {self.handle}"
        self.hold = hold
        at, fence = now(), getattr(hold.lock, "fence", None)
        return f"held {self.handle} {at} {fence() if fence else '-'}"

    def again(self):
        raise Cannot(f"{self.peer.name} is not re-entrant")

    def unlock(self):
        before = now()
        try:
            self.hold.release()
        except self.peer.client.lost as error:
            return f"lost {self.handle} {now()} {plain(error)}"
        return f"freed {self.handle} {before}"

    def held(self):
        return f"no {self.handle}" if self.hold.loss() else f"yes {self.handle}"

    def loss(self, wait):
        end = now() + int(wait) * 1_000_000
        while now() < end:
            if why := self.hold.loss():
                return f"lost {self.handle} {now()} {why}"
            time.sleep(POLL_SECONDS)
        return f"kept {self.handle}"

    def break_(self, name):
        before = now()
        return f"freed {self.handle} {before}" if self.peer.client.force_unlock(name) else f"free {self.handle}"

    def count(self, kind, name, path, rounds):
        for _ in range(int(rounds)):
            lock = self.new_lock(kind, name)
            if not lock.acquire(LEASE_MS, WAIT_MS):
                return f"error {self.handle} nothing for {WAIT_MS} ms"
            with open(path) as file:
                number = int(file.read())
            with open(path, "w") as file:
                file.write(str(number + 1))
            lock.release()
        return f"counted {self.handle} {rounds}"

    def load(self, kind, name, contenders, seconds, path):
        locks = [self.new_lock(kind, name) for _ in range(int(contenders))]
        end = now() + int(float(seconds) * 1e9)
        grants = [[] for _ in locks]

        def contend(number):
            while (asked := now()) < end:
                if not locks[number].acquire(LEASE_MS, WAIT_MS):
                    raise TimeoutError(f"nothing for {WAIT_MS} ms")
                granted = now()
                releasing = now()
                locks[number].release()
                grants[number].append((asked, granted, releasing, now()))

        together(contend, len(locks))
        with open(path, "w") as file:
            for number, lines in enumerate(grants):
                file.writelines(f"{number} {a} {g} {r} {d}\n" for a, g, r, d in lines)
        return f"loaded {self.handle} {sum(map(len, grants))}"

    def pairs(self, kind, name, tasks, seconds):
        locks = [self.new_lock(kind, f"{name}-{task}") for task in range(int(tasks))]
        end = now() + int(float(seconds) * 1e9)
        took = [[] for _ in locks]

        def pair(number):
            lock, mine = locks[number], took[number]
            while (start := now()) < end:
                if not lock.acquire(LEASE_MS, 0):
                    raise RuntimeError("the lock is held by another")
                lock.release()
                mine.append(now() - start)

        together(pair, len(locks))
        times = sorted(time for mine in took for time in mine)
        return f"pairs {self.handle} {len(times)} {times[len(times) // 2]} {times[len(times) * 99 // 100]}"


def together(work, many):
    """Runs `work` with 0 … many − 1, each on a thread; the first error of any is raised."""
    errors = []

    def guarded(number):
        try:
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def plain(error):
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:120]


class Peer:
    def __init__(self, name, url):
        self.name = name
        self.client = CLIENTS[name](url)
        self.out = threading.Lock()

    def say(self, line):
        with self.out:
            print(line, flush=True)

    def run(self):
        self.say(f"ready {self.name} {self.client.version}")
        workers = {}
        for line in sys.stdin:
            verb, handle, *args = line.split()
            if handle not in workers:
                workers[handle] = Worker(self, handle)
                workers[handle].start()
            workers[handle].commands.put(("break_" if verb == "break" else verb, args))


if __name__ == "__main__":
    Peer(*sys.argv[1:]).run()
