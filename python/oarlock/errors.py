"""The exceptions. All of them are an `Error`, which says what went wrong and whether to try again."""

from __future__ import annotations

from typing import Literal, Optional

__all__ = ["Busy", "ConfigError", "Denied", "Error", "Lost", "Unreachable", "Unsupported"]


class Error(Exception):
    """Any error of a lock or its store; `str()` is one line that says what happened and to which lock."""

    #: What went wrong, as one word: `busy`, `lost`, `unreachable`, … (docs/errors.md).
    kind: str = "internal"
    #: Whether the same request can succeed later.
    retry: Literal["never", "now", "later"] = "never"
    #: What to do next, in one sentence; empty if there is no general advice.
    hint: str = ""
    #: The lock that it is about.
    name: Optional[str] = None
    #: The scheme of the store's URL.
    scheme: Optional[str] = None
    #: `False` if the request certainly had no effect, `None` if that is not known.
    applied: Optional[bool] = None


class Busy(Error, TimeoutError):
    """The wait ended before the lock was free, or too many claims of this client wait already."""

    kind = "busy"
    retry = "later"


class Lost(Error):
    """The lock is not held any more: stop changing what it protects."""

    kind = "lost"
    #: Why, if it was lost and not released by this program.
    reason: Optional[str] = None


class Unreachable(Error, ConnectionError):
    """The store does not answer, or the client was closed. What was asked for may have happened."""

    kind = "unreachable"
    retry = "later"


class Denied(Error, PermissionError):
    """The store refused the credentials, or the operating system the access."""

    kind = "denied"


class ConfigError(Error, ValueError):
    """The URL, a name or an option is wrong."""

    kind = "config"


class Unsupported(Error):
    """This store cannot do that."""

    kind = "unsupported"


_CLASSES: dict[str, type[Error]] = {
    "busy": Busy,
    "too-many-waiters": Busy,
    "lost": Lost,
    "unreachable": Unreachable,
    "closed": Unreachable,
    "denied": Denied,
    "config": ConfigError,
    "invalid-name": ConfigError,
    "invalid-claim": ConfigError,
    "too-heavy": ConfigError,
    "spec-mismatch": ConfigError,
    "unsupported": Unsupported,
}


def _of(message: str, *, kind: str, **about: object) -> Error:
    """The exception for an error of the native part."""
    error = _CLASSES.get(kind, Error)(message)
    error.kind = kind
    for name, value in about.items():
        if name != "reason" or isinstance(error, Lost):
            setattr(error, name, value)
    return error
