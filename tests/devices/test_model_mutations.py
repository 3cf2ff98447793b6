"""Thousands of damaged models: a typed error or a clean run, and no process that ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import model_mutations as mutations


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (4135946153, 150),
        pytest.param(944652967, 4_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_damaged_models_are_refused_by_a_typed_error_or_run(seed: int, count: int) -> None:
    seed = int(os.environ.get("HETERO_FUZZ_SEED", seed))
    count = int(os.environ.get("HETERO_FUZZ_COUNT", count))
    print(f"HETERO_FUZZ_SEED={seed} HETERO_FUZZ_COUNT={count}")
    assert not mutations.supervise(seed, 0, count)


def test_the_models_that_are_damaged_run_as_they_are(tmp_path: Path) -> None:
    for model in mutations.models():
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        assert mutations.try_one(path, None) == "ran"
