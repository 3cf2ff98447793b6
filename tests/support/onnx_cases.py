"""Cache of ONNX's backend suite on disk, because onnx takes eight seconds to generate its cases.

Before 1.23, onnx reads its cases from files instead.
"""

from __future__ import annotations

import fcntl
import os
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test import loader
from onnx.backend.test.case.test_case import TestCase

_make = getattr(loader, "load_node_model_tests", None)


def keep_node_cases(folder: Path) -> None:
    """Make onnx's loader return the cases that an earlier process stored.

    Of several processes at once, one generates the cases and the others wait for its file.
    """
    if _make is None:
        return
    path = folder / f"node-cases-onnx-{onnx.__version__}-numpy-{np.__version__}.pickle"

    @cache
    def load_or_generate() -> list[TestCase]:
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return list(pickle.loads(path.read_bytes()))
            cases = _make()
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(pickle.dumps(cases))
            unfinished.replace(path)
            return cases

    loader.load_node_model_tests = load_or_generate
