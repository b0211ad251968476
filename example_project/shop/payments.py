"""The payment gateway's client."""

from __future__ import annotations

import contextlib
import json
from http.client import HTTPConnection, HTTPException
from typing import Any

from django.conf import settings

TIMEOUT_S = 10.0


class Unreachable(Exception):
    """The other side did not answer; nobody knows whether it did what it was asked for."""


class CardDeclined(Exception):
    """The bank said no. Asking again would not help."""


class Overtaken(Exception):
    """The gateway has seen a later holder of the same key."""


def charge(number: int, cents: int, *, idempotency_key: str, fence: int) -> str:
    """Charge the card for an order; returns the receipt.

    The same ``idempotency_key`` gets the same receipt and moves no money again. Raises
    :class:`Unreachable`, after which it may be called again.
    """
    headers = {"Idempotency-Key": idempotency_key, "X-Fence": str(fence)}
    status, answer = post(
        settings.PAYMENT_GATEWAY, "/charges", {"order": number, "cents": cents}, headers
    )
    if status == 402:
        raise CardDeclined(answer["error"])
    if status == 409:
        raise Overtaken(answer["error"])
    return str(answer["receipt"])


def post(
    address: str, path: str, data: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Post JSON to ``host:port``; returns status and answer. Raises :class:`Unreachable`, also
    when the other side says that it has a fault (5xx)."""
    headers = {"Content-Type": "application/json", **(headers or {})}
    with contextlib.closing(HTTPConnection(address, timeout=TIMEOUT_S)) as link:
        try:
            link.request("POST", path, json.dumps(data), headers)
            response = link.getresponse()
            answer = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise Unreachable(f"{address}{path}: {error}") from error
    if response.status >= 500:
        raise Unreachable(f"{address}{path} answered {response.status}")
    return response.status, answer
