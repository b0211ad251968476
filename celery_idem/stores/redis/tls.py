"""TLS as Celery's users write it: in the URL's query, or in ``broker_use_ssl``."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis

from celery_idem.core.errors import ConfigError

#: Celery's names for what redis-py calls none, optional and required.
_CERT_REQS = {
    "CERT_NONE": "none",
    "CERT_OPTIONAL": "optional",
    "CERT_REQUIRED": "required",
    "none": "none",
    "optional": "optional",
    "required": "required",
}
_OPTION = "ssl_cert_reqs"


def plain_query(url: str) -> str:
    """The URL with ``ssl_cert_reqs=CERT_NONE`` (and its like) as redis-py reads it.

    Raises :class:`ConfigError` for a value that neither Celery nor redis-py knows.
    """
    parts = urlsplit(url)
    if _OPTION not in parts.query:
        return url
    query = [
        (name, _cert_reqs(value) if name == _OPTION else value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return parts._replace(query=urlencode(query)).geturl()


def options_of(use_ssl: Any) -> dict[str, Any]:
    """redis-py's options for a value of ``broker_use_ssl`` or ``redis_backend_use_ssl``.

    A dict switches TLS on, also for a ``redis://`` URL. Anything else says nothing, as in kombu:
    the URL decides.
    """
    if not isinstance(use_ssl, Mapping):
        return {}
    options = dict(use_ssl)
    required = options.get(_OPTION)
    if isinstance(required, str):
        options[_OPTION] = _cert_reqs(required)
    elif isinstance(required, ssl.VerifyMode):
        options[_OPTION] = _cert_reqs(required.name)
    return {**options, "ssl": True}


def for_url(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """``ssl=True`` among the options, as ``from_url`` takes it: by the class of connection."""
    options = dict(options)
    if options.pop("ssl", False) and urlsplit(url).scheme == "redis":
        options["connection_class"] = redis.SSLConnection
    return options


def _cert_reqs(value: str) -> str:
    try:
        return _CERT_REQS[value]
    except KeyError:
        raise ConfigError(
            f"idem: {_OPTION} {value!r} is unknown; allowed are {', '.join(_CERT_REQS)}"
        ) from None
