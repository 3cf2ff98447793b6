"""Fuzzing of blobs and cache entries: each mutation is rejected with BlobError or read."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import numpy as np
import pytest

import hetero
from hetero.cache.blob import export_payloads, write_model
from hetero.devices.errors import BlobError
from tests.support import blob_mutations as mutations
from tests.support.models import branches, branches_output


@pytest.fixture(scope="module")
def blob():
    return mutations.example()


@pytest.mark.parametrize("count", [1_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_mutated_blob_raises_blob_error_quickly(blob, count):
    tally = mutations.try_all([blob], count, seed=1, memory=False)
    assert tally.slowest_s < mutations.MAX_SECONDS
    assert sum(n for outcome, n in tally.outcomes.items() if "rejected" in outcome) > count / 2


def test_mutated_blob_of_several_plans_raises_blob_error(blob):
    with hetero.Core(executor="inprocess") as core, core.import_model(blob) as compiled:
        (placement,) = compiled.placements
        payloads = export_payloads(compiled.deployment.routes, compiled.deployment.export)
        file = io.BytesIO()
        halves = [replace(placement, share=0.5)] * 2
        write_model(file, halves, compiled.request, [*payloads, *payloads])
    tally = mutations.try_all([file.getvalue()], 1_000, seed=3, memory=False)
    assert sum(n for outcome, n in tally.outcomes.items() if "rejected" in outcome) > 500


def test_reading_mutated_blob_needs_bounded_memory(blob):
    assert mutations.try_all([blob], 500, seed=2, memory=True).max_excess_nbytes < 0


def test_accepted_mutation_computes_the_same(blob):
    """These mutations keep the checksums, so that a blob that is read has its original contents."""
    x = np.ones((1, 128), np.float32)
    rng = random.Random(4)
    with hetero.Core(executor="inprocess") as core:
        with core.import_model(blob) as compiled:
            expected = compiled({"x": x})[0]
        for _ in range(300):
            mutate = rng.choice((mutations.flip, mutations.delete, mutations.splice))
            try:
                with core.import_model(mutate(blob, rng)) as compiled:
                    np.testing.assert_array_equal(compiled({"x": x})[0], expected)
            except BlobError:
                continue


def test_damaged_cache_entries_never_change_results(tmp_path):
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    rng = random.Random(5)
    cache = tmp_path / "cache"
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    with hetero.Core(executor="inprocess") as core:
        for _ in range(60):
            config = {"CACHE_DIR": str(cache)}
            with core.compile_model(branches(), "CPU", config) as compiled:
                np.testing.assert_allclose(compiled({"x": x})[0], branches_output(x), rtol=1e-6)
            path = rng.choice(sorted(p for p in cache.iterdir() if p.name != ".locks"))
            mutate = rng.choice(mutations.MUTATIONS[:4])
            path.write_bytes(mutate(path.read_bytes(), rng))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "outside"]
    assert outside.read_text() == "untouched"
