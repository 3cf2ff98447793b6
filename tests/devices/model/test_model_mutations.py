"""Randomly mutated models: each raises a typed error or runs; none crashes the process."""

from __future__ import annotations

import os

import pytest

from tests.support import model_mutations as mutations


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (4135946153, 150),
        pytest.param(944652967, 2_000, marks=pytest.mark.slow),
    ],
)
def test_mutated_model_raises_typed_error_or_runs(seed, count):
    seed = int(os.environ.get("HETERO_FUZZ_SEED", seed))
    count = int(os.environ.get("HETERO_FUZZ_COUNT", count))
    print(f"HETERO_FUZZ_SEED={seed} HETERO_FUZZ_COUNT={count}")
    assert not mutations.supervise(seed, 0, count)


def test_original_model_runs(tmp_path):
    for model in mutations.models():
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        assert mutations.try_one(path, None) == "ran"
