"""The version of this package, as it is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def hetero_version() -> str:
    """Return this package's version."""
    try:
        return version("hetero")
    except PackageNotFoundError:
        return "0"
