"""A Core with counting devices, and compilation with a cache folder."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
DEVICES = "HETERO:COUNT.0,COUNT.1,CPU"
PINS = {"op:Neg": "CPU"}
PLUGINS = (CountingPlugin, DensePlugin)


@contextlib.contextmanager
def counting_core() -> Iterator[hetero.Core]:
    counts = {"COUNT": 2}
    with hetero.Core(executor="inprocess", devices=counts, plugins=PLUGINS) as core:
        yield core


def compile_cached(core: hetero.Core, folder: Path, model: Any = None, **changes: Any) -> bool:
    """Compile with a cache, check the result, and return whether the cache was hit."""
    model = branches() if model is None else model
    device = changes.pop("device", DEVICES)
    affinity = changes.pop("affinity", PINS)
    check = changes.pop("check", branches_output)
    config = {"CACHE_DIR": str(folder), **changes}
    with core.compile_model(model, device, config, affinity=affinity) as compiled:
        np.testing.assert_allclose(compiled({"x": X})[0], check(X), rtol=1e-5)
        hit: bool = compiled.get_property("LOADED_FROM_CACHE")
    return hit


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".locks")


def one_warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    return record.getMessage()


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
