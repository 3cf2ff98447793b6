"""Simulated histories of the scheduler: invariants hold for seeds, and a seed is reproducible."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.generation_history import GenerationHistory
from tests.simulation.history import History
from tests.simulation.planted_bugs import PLANTED_BUGS, ROOT, with_bug
from tests.simulation.scenario import Faults
from tests.support.rows import for_each_row

#: Seeds of short histories that together have every kind of fault and every shape of model.
SHORT_SEEDS = (2, 7, 9, 13, 18, 21, 90, 100, 173, 174, 246, 315, 726)


@pytest.mark.parametrize(
    "seed",
    [
        *SHORT_SEEDS,
        *(
            pytest.param(seed, marks=pytest.mark.slow)
            for seed in range(24)
            if seed not in SHORT_SEEDS
        ),
    ],
)
def test_history_keeps_invariants(seed):
    history = History(seed).run()
    command = f"python -m tests.simulation --seed {seed} --trace trace.json"
    assert history.violations == [], f"replay: {command}"


@pytest.mark.parametrize(
    "seed",
    # 27: other sequences joined the batch of a sequence during its prefill.
    [27, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6))],
)
def test_generation_history_keeps_invariants(seed):
    history = GenerationHistory(seed).run()
    assert history.violations == [], f"replay: python -m tests.simulation --texts --seed {seed}"


@pytest.mark.slow
def test_history_depends_on_the_seed_alone():
    code = (
        "from tests.simulation.history import History\n"
        "hashes = [History(seed).run().simulator.hash for seed in (0, 16, 5, 0, 16)]\n"
        "assert hashes[:2] == hashes[3:], hashes\n"
        "print(hashes)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "hash" not in outputs.pop()


@pytest.mark.slow
def test_long_history_keeps_invariants():
    """Run 2,000 requests per seed, like `python -m tests.simulation --requests 2000`."""
    for seed in range(5):
        faults = Faults(loss=0.01, double=0.02, late=0.1, late_s=0.01, crash_s=2.0, cut_s=3.0)
        history = History(seed, num_requests=2000, faults=faults).run()
        assert history.violations == [], seed


@for_each_row("name", PLANTED_BUGS)
def test_planted_bug_applies_to_the_source(name):
    path, source = with_bug(name)
    assert source != (ROOT / path).read_text()
    compile(source, str(path), "exec")
