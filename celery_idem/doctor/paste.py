"""Lines to paste that change one setting of a dict and keep the others: without ``{**…}`` lanes,
Sentinel's ``master_name`` and whatever else stands there would be gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def change(setting: str, **values: Any) -> str:
    """The line that gives these values to ``app.conf.<setting>``, a dict. Dicts in it are changed
    likewise.

    >>> change("broker_transport_options", visibility_timeout=7200)
    'app.conf.broker_transport_options = {**(app.conf.get("broker_transport_options") or {}), \
"visibility_timeout": 7200}'
    """
    return f"app.conf.{setting} = {_merged(f'app.conf.get({json.dumps(setting)})', values)}"


def _merged(given: str, values: Mapping[str, Any]) -> str:
    items = (f"{json.dumps(name)}: {_value(given, name, value)}" for name, value in values.items())
    return f"{{**({given} or {{}}), {', '.join(items)}}}"


def _value(given: str, name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return _merged(f"({given} or {{}}).get({json.dumps(name)})", value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value) if isinstance(value, str) else repr(value)
