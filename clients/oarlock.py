"""Locks over HTTP, with `oarlock serve`. One file, the standard library alone; Python 3.9 or later.

    from oarlock import Client

    client = Client("http://127.0.0.1:7070")
    with client.lock("deploy/prod", wait=20, reason="release 2.3") as lock:
        while work_is_left():
            lock.check()                      # raises Lost once the lock may be held by another
            write(row, fence=lock.fence)      # the protected side refuses a smaller fence than it has seen

A thread renews the lock. Belief counts from before each request was sent, so that it ends before the store can grant the
lock to another client. What `lock.check()` cannot stop, the fence must.
"""

import http.client
import json
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

__all__ = ["Busy", "Client", "Error", "Lock", "Lost"]


# On macOS `time.monotonic()` stands still while the machine sleeps, and CLOCK_MONOTONIC does not. Windows has neither:
# its `time.monotonic()` counts sleep.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


# A lock request whose answer is missing may have taken the lock: it is repeated for so long after its wait, in seconds.
# A repetition that is under way then has as long again.
_GRACE = 5.0


def _now():
    """A clock that is never set, and goes on while the machine sleeps, as the lease in the store does."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


class Error(Exception):
    """The server refused a request; `code` is one word for programs."""

    def __init__(self, code, detail):
        super().__init__(detail)
        self.code = code


class Busy(Error):
    """Another client holds the lock."""


class Lost(Error):
    """The lock is not held any more: stop changing what it protects."""


class Client:
    """A server, and the token for it, if it needs one."""

    def __init__(self, url, token=None, timeout=90):
        self._url, self._token, self._timeout = url.rstrip("/"), token, timeout

    def lock(
        self, name, wait=0.0, ttl=30.0, kind="mutex", reason=None, permits=None, take=None, label=None, watch=False
    ):
        """Takes a lock, or waits for it for `wait` seconds. Raises `Busy`; an `OSError` if no server can be reached.

        It ends with the wait if a server refuses the connection, and ten seconds later at most if answers are missing.
        With `watch`, a thread follows the stream of the lease: a break and a loss are told at once. It takes a connection
        for each lock.
        """
        body = {"kind": kind, "ttl_ms": round(ttl * 1000)}
        body.update({key: value for key, value in (("permits", permits), ("take", take)) if value is not None})
        body["label"] = {"host": socket.gethostname(), "pid": os.getpid(), **(label or {})}
        if reason is not None:
            body["label"]["reason"] = reason
        # The same key again joins the same request: no answer that is lost can cost a lock or a place in the queue.
        key, end = {"Idempotency-Key": str(uuid.uuid4())}, _now() + wait
        give_up = end + _GRACE
        # A request with this key may have reached a server, and may have been granted.
        may_be_held = False
        while True:
            sent = _now()
            # A server that does not know the key, after a restart, waits for what is left.
            body["wait_ms"] = max(round((end - sent) * 1000), 0)
            timeout = min(self._timeout, max(give_up + _GRACE - sent, 1))
            try:
                status, answer = self._send("POST", self._path(name), body, key, timeout)
            except (OSError, http.client.HTTPException) as error:
                # What was not sent has taken nothing: there is no answer to ask for.
                may_be_held = may_be_held or not _was_not_sent(error)
                if _now() >= (give_up if may_be_held else end):
                    raise
                time.sleep(0.2)
                continue
            except Error as error:
                left = end - _now()
                if error.code in ("closing", "unreachable") and left > 0:
                    # The server ends, or cannot reach the store: it has given up the request. Begin anew, there or at
                    # the next server, for what is left of the wait.
                    time.sleep(min(1, left))
                    key, may_be_held = {"Idempotency-Key": str(uuid.uuid4())}, False
                    continue
                may_be_held = may_be_held or error.code == "no-answer"
                if error.code not in ("no-answer", "too-fast", "too-many-requests") or _now() >= give_up:
                    raise
                time.sleep(1)
                continue
            if status == 201:
                return Lock(self, name, answer, sent, watch)
            may_be_held = True

    def show(self, name):
        """Everything about a lock: holders, queue, labels."""
        return self._send("GET", self._path(name))[1]

    def list(self, pattern="*"):
        """The locks in use."""
        return self._send("GET", "/v1/locks?" + urllib.parse.urlencode({"pattern": pattern}))[1]["locks"]

    @staticmethod
    def _path(name):
        return "/v1/locks/" + urllib.parse.quote(name, safe="")

    def _send(self, method, path, body=None, headers=None, timeout=None):
        with self._open(method, path, body, headers, timeout) as answer:
            return answer.status, json.load(answer)

    def _open(self, method, path, body=None, headers=None, timeout=None):
        request = urllib.request.Request(self._url + path, method=method, headers=dict(headers or {}))
        if self._token:
            request.add_header("Authorization", "Bearer " + self._token)
        data = None if body is None else json.dumps(body).encode()
        try:
            return _OPENER.open(request, data, timeout=timeout or self._timeout)
        except urllib.error.HTTPError as refused:
            problem = _problem(refused)
            raise {"busy": Busy, "lost": Lost}.get(problem["code"], Error)(problem["code"], problem["detail"]) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the token is for this server alone."""

    def redirect_request(self, *_):
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _was_not_sent(error):
    """Whether a request has certainly not reached a server: there was no connection, or no trust in its certificate."""
    reason = getattr(error, "reason", error)
    return isinstance(reason, (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError))


def _problem(refused):
    try:
        problem = json.load(refused)
        return {"code": problem["code"], "detail": problem["detail"]}
    except (ValueError, KeyError, TypeError):
        # A proxy answers for a server that does not.
        code = "no-answer" if refused.code in (502, 503, 504) else "unexpected"
        return {"code": code, "detail": f"the server answered with status {refused.code}"}


class Lock:
    """A held lock. Leave it by `with`, or call `release`."""

    def __init__(self, client, name, answer, sent, watch=False):
        self._client, self.name, self.fence = client, name, int(answer["fence"])
        self._lease, self._ended, self._why = {"lease": answer["lease"]}, threading.Event(), None
        self._until, self.ending = 0.0, None
        self._believe(answer, sent)
        threading.Thread(target=self._renew, args=(answer["renew_in_ms"] / 1000,), daemon=True).start()
        if watch:
            threading.Thread(target=self._watch, daemon=True).start()

    def _believe(self, answer, sent):
        # `ending` says by whom and why, once an operator wants the lock: finish, and release it. It is not extended.
        # The stream may have told it while this answer was under way.
        self._until, self.ending = sent + answer["believe_ms"] / 1000, answer.get("ending") or self.ending

    @property
    def is_held(self):
        """Whether this process may believe that it holds the lock, now. It asks no server."""
        return self._why is None and _now() < self._until

    def check(self):
        """Raises `Lost` unless the lock is held."""
        if not self.is_held:
            raise Lost("lost", self._why or self._expired())

    def _expired(self):
        if self.ending:
            return f"broken by {self.ending['by']}: {self.ending['why']}"
        return "the lease ran out before it could be renewed"

    def _renew(self, pause):
        while not self._ended.wait(pause):
            left = self._until - _now()
            if left <= 0:
                return
            sent = _now()
            try:
                path = self._client._path(self.name) + "/renew"
                _, answer = self._client._send("POST", path, self._lease, timeout=max(left / 3, 0.05))
            except Lost as lost:
                self._why = str(lost)
                return
            except (Error, OSError, http.client.HTTPException):
                pause = min(pause, max(left / 4, 0.05))
                continue
            self._believe(answer, sent)
            if self.ending:
                return
            pause = answer["renew_in_ms"] / 1000

    def _watch(self):
        """Follows the stream of the lease. Renewals go on beside it, so that a stream that ends costs nothing."""
        path, lease = self._client._path(self.name) + "/watch", {"Oarlock-Lease": self._lease["lease"]}
        while self.is_held:
            try:
                # The server sends something every ten seconds.
                with self._client._open("GET", path, headers=lease, timeout=30) as stream:
                    event = None
                    for line in stream:
                        if self._ended.is_set():
                            return
                        key, _, value = line.decode().rstrip().partition(": ")
                        if key == "event":
                            event = value
                        elif key == "data" and event == "ending":
                            self.ending = json.loads(value)
                        elif key == "data" and event == "lost":
                            self._why = self._why or json.loads(value)["detail"]
                            return
            except Lost as lost:
                self._why = self._why or str(lost)
            except (Error, OSError, ValueError, http.client.HTTPException):
                # The server is gone, or has no stream left.
                pass
            self._ended.wait(1)

    def release(self):
        """Gives the lock back. Raises `Lost` if it was lost before."""
        self._ended.set()
        self._why = self._why or "it was released"
        self._client._send("POST", self._client._path(self.name) + "/release", self._lease)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.release()
        except (Error, OSError, http.client.HTTPException):
            # The error of the body says more; without one, the caller must learn that the lock was lost.
            if kind is None:
                raise
