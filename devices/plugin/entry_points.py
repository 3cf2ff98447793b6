"""Entry points of installed packages; they are read once for each state of the module path.

Reading the metadata of 154 packages takes 25 ms, and each Core needs the entry points.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple


class InstalledPoint(NamedTuple):
    """An entry point, and the name and version of its distribution."""

    point: metadata.EntryPoint
    distribution: str
    version: str


def installed_points(group: str) -> tuple[InstalledPoint, ...]:
    """Return the entry points of a group, with those of packages installed in the meantime."""
    folders = tuple((folder, modified_ns(folder)) for folder in sys.path)
    return _read(metadata.entry_points, group, folders)


@lru_cache(maxsize=8)
def _read(
    entry_points: Callable[..., Iterable[metadata.EntryPoint]],
    group: str,
    folders: tuple[tuple[str, int], ...],
) -> tuple[InstalledPoint, ...]:
    return tuple(
        InstalledPoint(
            point,
            point.dist.name if point.dist else "",
            getattr(point.dist, "version", ""),
        )
        for point in entry_points(group=group)
    )


def modified_ns(folder: str) -> int:
    """Return the time when an entry of the folder was last added or removed; 0 if unknown."""
    try:
        return Path(folder or os.curdir).stat().st_mtime_ns
    except OSError:
        return 0
