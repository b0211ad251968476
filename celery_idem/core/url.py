"""URLs of brokers and stores as they may be shown: in errors, findings, logs and JSON."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

HIDDEN = "***"

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
#: a scheme, and all that comes before the next one
_URL = re.compile(rf"({_SCHEME})((?:(?!{_SCHEME}).)*)", re.DOTALL)
_SECRET_OPTION = re.compile(
    r"(?<![\w.-])([\w.-]*(?:passw|passphrase|secret|token|credential)[\w.-]*"
    rf"|pass|pwd|auth|sentinel_kwargs)=((?:(?!;?{_SCHEME})[^&])+)",
    re.IGNORECASE | re.DOTALL,
)
#: a query has names; a question mark without one is in a password
_QUERY = re.compile(r"\?(?=[\w.-]+=)")
_HOST = re.compile(r"[^:]+(:\d+)?(/.*)?", re.DOTALL)


def without_password(text: str) -> str:
    """The URL, or several, as they may be shown: one after another with semicolons, or in a list.

    What a password is must not depend on whether it is quoted as URLs want it: one with ``@`` or
    ``/`` in it goes as a whole, rather with a part of the host than not.

    >>> without_password("sentinel://:secret@a:26379;sentinel://me:other@b:26379/0")
    'sentinel://:***@a:26379;sentinel://me:***@b:26379/0'
    >>> without_password("redis://:p@ss/word@cache:6379/0?password=s3&db=1")
    'redis://:***@cache:6379/0?password=***&db=1'
    """
    text = _URL.sub(lambda found: found[1] + _without_login(found[2]), text)
    return _SECRET_OPTION.sub(rf"\1={HIDDEN}", text)


def why_unreadable(url: str, error: ValueError) -> str:
    """The error of whoever read the URL, unless it could cite a part of the password."""
    if url.partition(";")[0].count("@") > server_of(url).count("@"):
        return "in a password '/', '?', '#' and '[' are written %2F, %3F, %23 and %5B"
    return str(error)


def scheme_of(url: str) -> str:
    """What stands before the first colon: that much of any URL can be read. Nothing where there is
    none: ``redis`` is a name of Celery's for a backend, and no URL."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() if colon else ""


def server_of(url: str) -> str:
    """The first server with its login, host and port; nothing where that can't be read."""
    try:
        return urlsplit(url.split(";")[0]).netloc
    except ValueError:
        return ""


def _without_login(rest: str) -> str:
    """What comes after ``scheme://``, up to the next one."""
    login, at, host = _parted(rest)
    user, colon, _ = login.partition(":")
    return f"{user}{colon}{HIDDEN if colon else ''}{at}{host}"


def _parted(rest: str) -> tuple[str, str, str]:
    query = _QUERY.search(rest)
    before = rest[: query.start()] if query else rest
    if "@" in before:
        login, at, host = before.rpartition("@")
        return login, at, host + rest[len(before) :]
    if "@" in rest and not _HOST.fullmatch(before):  # what looks like a query is in a password
        return rest.rpartition("@")
    return "", "", rest
