"""Patterns as SCAN and KEYS read them."""

from __future__ import annotations

import re


def glob_of(text: str) -> str:
    """A pattern of this very text."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)
