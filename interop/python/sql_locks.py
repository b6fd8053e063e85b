"""pg_advisory_lock from psql and GET_LOCK from mariadb: a process of the plain client program for each lock."""

import ctypes
import signal
import subprocess
from urllib.parse import urlsplit

PR_SET_PDEATHSIG = 1
DONE = "-- done --"

libc = ctypes.CDLL(None)


class Ended(Exception):
    """The session is over, and with it what it held."""


class Session:
    """One process of a client program, asked by lines."""

    def __init__(self, command):
        # It dies with this program, however that ends.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )

    def ask(self, *statements):
        """The lines that are answered; a refusal begins with ERROR."""
        try:
            for statement in (*statements, f"SELECT '{DONE}'"):
                self.process.stdin.write(statement + ";\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Ended("the client program has ended") from None
        lines = []
        for line in self.process.stdout:
            if line.strip() == DONE:
                return lines
            lines.append(line.strip())
        raise Ended(" ".join(lines) or "the client program has ended")

    def end(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()


class SqlLock:
    def __init__(self, client, name):
        self.client, self.name = client, name
        self.session = None

    def acquire(self, _lease_ms, wait_ms):
        self.session = Session(self.client.command)
        answer = self.session.ask(*self.client.take(self.name, wait_ms))
        if self.client.has(answer):
            return True
        self.session.end()
        return False

    def extend(self, _lease_ms):
        """A session keeps what it has."""

    def owned(self):
        try:
            return self.client.yes in self.session.ask(self.client.mine(self.name))
        except Ended:
            return False

    def release(self):
        try:
            answer = self.session.ask(self.client.give(self.name))
        finally:
            self.session.end()
        if self.client.yes not in answer:
            raise Ended(f"it was not held: {' '.join(answer)}")


class Plain:
    """What both have in common."""

    kinds = {"mutex"}
    lost = Ended

    def __init__(self, url):
        self.connect(urlsplit(url))
        program = subprocess.run([self.command[0], "--version"], capture_output=True, text=True, check=True)
        self.version = self.version_in(program.stdout)
        if self.once("SELECT 1") != ["1"]:
            raise Ended("it does not answer")

    def once(self, statement):
        session = Session(self.command)
        try:
            return session.ask(statement)
        finally:
            session.end()

    def lock(self, _kind, name):
        return SqlLock(self, name)

    def force_unlock(self, name):
        # There is no call for it: users end the session that has it.
        return self.yes in self.once(self.kick(name))


class Psql(Plain):
    yes = "t"

    def connect(self, url):
        self.command = ["psql", "-X", "-A", "-t", "-q", url.geturl()]

    @staticmethod
    def version_in(text):
        return text.split()[2]

    @staticmethod
    def key(name):
        # The number that Oarlock makes of a name.
        return f"('x' || left(encode(sha256('{name}'), 'hex'), 16))::bit(64)::bigint"

    def take(self, name, wait_ms):
        if not wait_ms:
            return (f"SELECT pg_try_advisory_lock({self.key(name)})",)
        return (f"SET lock_timeout = {wait_ms}", f"SELECT 't' FROM pg_advisory_lock({self.key(name)})")

    def has(self, answer):
        return answer == ["t"]

    def mine(self, name):
        return f"SELECT count(*) > 0 FROM pg_locks WHERE {self.found(name)} AND pid = pg_backend_pid()"

    def give(self, name):
        return f"SELECT pg_advisory_unlock({self.key(name)})"

    def kick(self, name):
        return f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {self.found(name)}"

    def found(self, name):
        return (
            "locktype = 'advisory' AND granted AND objsubid = 1 AND"
            f" (classid::bigint << 32) | objid::bigint = {self.key(name)}"
        )


class MariaDb(Plain):
    yes = "1"

    def connect(self, url):
        where = [f"--host={url.hostname}", f"--port={url.port}", f"--user={url.username}", url.path.strip("/")]
        self.command = ["mariadb", "--no-defaults", "-N", "-B", "-n", "--skip-reconnect", *where]

    @staticmethod
    def version_in(text):
        return text.split("Distrib ")[1].split("-")[0]

    def take(self, name, wait_ms):
        return (f"SELECT GET_LOCK('{name}', {wait_ms / 1000})",)

    def has(self, answer):
        return answer == ["1"]

    def mine(self, name):
        return f"SELECT IS_USED_LOCK('{name}') = CONNECTION_ID()"

    def give(self, name):
        return f"SELECT RELEASE_LOCK('{name}')"

    def force_unlock(self, name):
        (holder,) = self.once(f"SELECT COALESCE(IS_USED_LOCK('{name}'), 0)")
        return holder != "0" and self.once(f"KILL {holder}") == []


CLIENTS = {"psql": Psql, "mariadb": MariaDb}
