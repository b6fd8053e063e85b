"""kazoo's Lock, ReadLock, WriteLock, Semaphore and Election. What a lease is elsewhere is the session here."""

import logging
import os
import threading
from importlib.metadata import version

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout, NoNodeError


class Lost(Exception):
    """The node was not there any more."""


class Kazoo:
    kinds = {"mutex", "read", "write", "semaphore", "election"}
    lost = Lost
    version = version("kazoo")

    def __init__(self, hosts):
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        self.client = KazooClient(hosts=hosts, timeout=float(os.environ.get("PEER_LEASE", "10000")) / 1000)
        self.client.start()

    def lock(self, kind, name):
        kind, _, permits = kind.partition(":")
        path = f"/{name}"
        if kind == "semaphore":
            return Permit(self.client, path, int(permits))
        if kind == "election":
            return Leader(self.client, path)
        make = {"mutex": self.client.Lock, "read": self.client.ReadLock, "write": self.client.WriteLock}[kind]
        return Owned(self.client, path, make(path, "kazoo"))

    def force_unlock(self, name):
        # There is no call for it: users delete the first node.
        try:
            nodes = self.client.get_children(f"/{name}")
        except NoNodeError:
            return False
        nodes = sorted(nodes, key=lambda node: node[-10:])
        if nodes:
            self.client.delete(f"/{name}/{nodes[0]}")
        return bool(nodes)


class Node:
    """The nodes of a hold. The library never reports a loss, so its users read them."""

    def __init__(self, client, path):
        self.client, self.path = client, path

    def extend(self, _lease_ms):
        """The session is kept alive by the client."""

    def stat(self):
        return self.client.exists(self.node())

    def owned(self):
        return self.stat() is not None

    def fence(self):
        stat = self.stat()
        return stat.czxid if stat else "-"

    def release(self):
        gone = self.stat() is None
        self.let_go()
        if gone:
            raise Lost("its node was gone")


class Owned(Node):
    def __init__(self, client, path, inner):
        super().__init__(client, path)
        self.inner = inner

    def node(self):
        return f"{self.path}/{self.inner.node}"

    def acquire(self, _lease_ms, wait_ms):
        try:
            return self.inner.acquire(blocking=wait_ms > 0, timeout=wait_ms / 1000 if wait_ms else None)
        except LockTimeout:
            return False

    def let_go(self):
        self.inner.release()


class Permit(Owned):
    def __init__(self, client, path, permits):
        super().__init__(client, path, client.Semaphore(path, "kazoo", max_leases=permits))

    def node(self):
        return self.inner.create_path


class Leader(Node):
    """An election calls back when it is won, and is over when that returns."""

    def __init__(self, client, path):
        super().__init__(client, path)

    def acquire(self, _lease_ms, wait_ms):
        self.election = self.client.Election(self.path, "kazoo")
        self.won, self.over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.election.run, args=(self.lead,), daemon=True)
        self.thread.start()
        # It needs a moment to learn that it leads.
        if self.won.wait(max(wait_ms, 1000) / 1000):
            return True
        self.election.cancel()
        self.thread.join()
        return False

    def lead(self):
        self.won.set()
        self.over.wait()

    def node(self):
        return f"{self.path}/{self.election.lock.node}"

    def let_go(self):
        self.over.set()
        self.thread.join()


CLIENTS = {"kazoo": Kazoo}
