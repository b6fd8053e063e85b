"""filelock, on the files of one folder."""

from importlib.metadata import version
from pathlib import Path

import filelock


class FileLock:
    kinds = {"mutex"}
    lost = filelock.Timeout
    version = version("filelock")

    def __init__(self, folder):
        self.folder = Path(folder)

    def lock(self, _kind, name):
        return Lock(self.folder / f"{name}.lock")


class Lock:
    def __init__(self, path):
        self.inner = filelock.FileLock(path, thread_local=False)

    def acquire(self, _lease_ms, wait_ms):
        try:
            self.inner.acquire(timeout=wait_ms / 1000)
        except filelock.Timeout:
            return False
        return True

    def owned(self):
        return self.inner.is_locked

    def release(self):
        self.inner.release()


CLIENTS = {"filelock": FileLock}
