"""Placeholder of drawings."""

from typing import Any


def drawings(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return nothing yet."""
    return []
