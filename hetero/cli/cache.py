"""``hetero cache list | verify | prune | clear``: manage a folder of compiled models."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final

import click

from hetero.cache.blob import describe_blob
from hetero.cache.folder import VERDICTS_SUFFIX, Cache, CacheFile
from hetero.cli.option_types import FiniteFloat, combine_options, json_option
from hetero.cli.terminal import print_result
from hetero.devices.errors import BlobError
from hetero.formatting import nbytes_text, seconds_text
from hetero.properties.table import COSTS_SUFFIX
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.terminal_tables import Columns, table

#: Multiples in sizes such as 500MB.
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@click.group()
def cache() -> None:
    """Manage a folder of compiled models (CACHE_DIR)."""


_folder: Final = combine_options(
    click.option(
        "--dir",
        "folder",
        required=True,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="The cache folder.",
    ),
    json_option,
)


@cache.command("list")
@_folder
def list_(folder: Path) -> None:
    """List cache entries, the least recently used first."""
    rows = [_row(entry) for entry in Cache(folder).entries()]
    total = sum(row["nbytes"] for row in rows)
    columns: Columns = {
        "entry": lambda row: row["file"][:12] + "…",
        "kind": "kind",
        "model": "model",
        "devices": ("devices", ", ".join),
        "size": ("nbytes", nbytes_text),
        "age": ("age_s", seconds_text),
        "last used": ("idle_s", lambda s: f"{seconds_text(s)} ago"),
    }
    entries = table(rows, columns, wraps=("kind", "model", "devices"))
    document = {"folder": folder, "nbytes": total, "entries": rows}
    print_result("cache", document, [entries, f"{_entries(len(rows))}, {nbytes_text(total)}"])


@cache.command()
@_folder
def verify(folder: Path) -> None:
    """Check every entry's checksums; exit code 1 if one is damaged."""
    cache_ = Cache(folder)
    checks = {entry.path.name: cache_.check(entry) for entry in cache_.entries()}
    damaged = {name: reason for name, reason in checks.items() if reason is not None}
    document = {"folder": folder, "checked": len(checks), "damaged": damaged}
    print_result(
        "cache", document, [*damaged.values(), f"{_entries(len(checks))}, {len(damaged)} damaged"]
    )
    if damaged:
        raise click.exceptions.Exit(1)


@cache.command()
@_folder
@click.option(
    "--max-size", callback=lambda *a: _nbytes(a[2]), help="Maximum total size, such as 500MB."
)
@click.option(
    "--older-than-days", type=FiniteFloat(min=0), help="Remove entries not used for this long."
)
def prune(folder: Path, max_size: int | None, older_than_days: float | None) -> None:
    """Remove the least recently used entries."""
    if max_size is None and older_than_days is None:
        raise click.UsageError("nothing to prune by; pass --max-size, --older-than-days, or both.")
    removed = Cache(folder).prune(
        max_size, older_than_s=None if older_than_days is None else older_than_days * 86400
    )
    _print_removed(removed, folder)


@cache.command()
@_folder
def clear(folder: Path) -> None:
    """Remove every entry."""
    _print_removed(Cache(folder).clear(), folder)


def _row(entry: CacheFile) -> dict[str, Any]:
    now = time.time()
    kind, model, devices = "costs", None, []
    if entry.path.name.endswith(VERDICTS_SUFFIX):
        kind = "verdicts"
    elif not entry.path.name.endswith(COSTS_SUFFIX):
        try:
            document = describe_blob(BlobFile(entry.path, of_cache=True))
            kind, model, devices = document["kind"], document["name"], list(document["devices"])
        except (BlobError, OSError):
            kind = "damaged or encrypted"
    return {
        "file": entry.path.name,
        "kind": kind,
        "model": model,
        "devices": devices,
        "nbytes": entry.nbytes,
        "age_s": now - entry.created_s,
        "idle_s": now - entry.used_s,
    }


def _print_removed(entries: list[CacheFile], folder: Path) -> None:
    nbytes = sum(entry.nbytes for entry in entries)
    names = [entry.path.name for entry in entries]
    document = {"folder": folder, "removed": names, "nbytes": nbytes}
    print_result("cache", document, [f"removed {_entries(len(entries))}, {nbytes_text(nbytes)}"])


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number:,} entries"


def _nbytes(text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+|\d*\.\d+) *([KMGT]?)B?", text.strip().upper())
    if match is None:
        raise click.BadParameter(f"got {text!r}, expected a size such as 500MB")
    return int(float(match[1]) * _UNITS[match[2]])
