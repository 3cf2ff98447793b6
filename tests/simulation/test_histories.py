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

#: Seeds that found a bug, or find a planted bug that few other seeds find, with that bug.
REGRESSION_SEEDS = {
    105: "a replayed request waited for a tensor of the device that was just removed",
    246: "a suspended client mistook an older process of a device for the current one",
    315: "a device with a hanging stage was not restarted because another client used it",
    173: "tensors-of-lost-devices-awaited",
    350: "two devices restarted at once, and one did not receive the other's address",
    377: "two requests were put in quarantine while they ran on other devices, and both continued",
    726: "a request admitted during the removal of a device waited for its tensor",
    174: "pause-without-end",
}

#: Seeds that, with those above, run every line that the first 24 seeds run.
COVERING_SEEDS = (4, 7, 9, 18, 21)


@pytest.mark.parametrize(
    "seed",
    [
        *COVERING_SEEDS,
        *REGRESSION_SEEDS,
        *(
            pytest.param(seed, marks=pytest.mark.slow)
            for seed in range(24)
            if seed not in COVERING_SEEDS
        ),
    ],
)
def test_history_keeps_invariants(seed: int) -> None:
    history = History(seed).run()
    command = f"python -m tests.simulation --seed {seed} --trace trace.json"
    assert history.violations == [], f"replay: {command}"


@pytest.mark.parametrize(
    "seed",
    # 27: other sequences joined the batch of a sequence during its prefill.
    [27, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12))],
)
def test_generation_history_keeps_invariants(seed: int) -> None:
    history = GenerationHistory(seed).run()
    assert history.violations == [], f"replay: python -m tests.simulation --texts --seed {seed}"


@pytest.mark.slow
def test_history_depends_on_the_seed_alone() -> None:
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
def test_long_history_keeps_invariants() -> None:
    """Run 2,000 requests per seed, like `python -m tests.simulation --requests 2000`."""
    for seed in range(5):
        faults = Faults(loss=0.01, double=0.02, late=0.1, late_s=0.01, crash_s=2.0, cut_s=3.0)
        history = History(seed, num_requests=2000, faults=faults).run()
        assert history.violations == [], seed


@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_planted_bug_applies_to_the_source(name: str) -> None:
    path, source = with_bug(name)
    assert source != (ROOT / path).read_text()
    compile(source, str(path), "exec")
