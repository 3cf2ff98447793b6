"""Differential fuzzing: drawn operators and graphs against two oracles, broken ones refused.

A run draws the same each time. ``HETERO_FUZZ_CASES`` says how many operators to draw otherwise, and
``HETERO_FUZZ_SEED`` from which seed. `disagreements.txt` lists what may differ, and why.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.errors import HeteroError
from tests.backend_suite.expected_failures import read_expected_failures
from tests.fuzz.operators import OperatorCase, broken, draw
from tests.fuzz.oracles import ORACLES, WIDENED, WORKER, NoAnswerError, differences, run_onnxruntime
from tests.support.graphs import feeds, random_affinity, random_model
from tests.support.small_models import run_cpu

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CASES = int(os.environ.get("HETERO_FUZZ_CASES", "2000"))
SEED = int(os.environ.get("HETERO_FUZZ_SEED", "0"))
LISTED = read_expected_failures(Path(__file__).with_name("disagreements.txt"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    print(f"HETERO_FUZZ_SEED={SEED}")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
    WORKER.close()


def listed(case: OperatorCase) -> bool:
    return any(fnmatchcase(str(case), pattern.replace("[", "[[]")) for pattern in LISTED)


def disagreement(case: OperatorCase, counts: Counter[str]) -> str:
    """Return how ours differs from every oracle that takes the case, or the empty string."""
    answers, refusals = {}, set()
    for name, run in ORACLES.items():
        try:
            answers[name] = run(case)
        except NoAnswerError:
            counts[f"not for {name}"] += 1
        except Exception as error:
            counts[f"refused by {name}"] += 1
            refusals.add(f"{name}: {error}")
    if not answers:
        counts["no oracle"] += 1
        return ""
    counts["compared"] += 1
    try:
        ours = run_cpu(case.model(), case.feeds())
    except HeteroError as error:
        ran = ", ".join(answers)
        return "" if refusals else f"{type(error).__name__}: {error}; {ran} run it"
    found = {n: differences(ours, y, rounds=n == WIDENED) for n, y in answers.items()}
    return "" if not all(found.values()) else "; ".join(f"{n}: {d}" for n, d in found.items())


def report(found: list[str], counts: Counter[str], what: str) -> None:
    print(f"{what}: {dict(counts)}")
    shown = "\n".join(found[:200])
    assert not found, f"{len(found)} disagreements, HETERO_FUZZ_SEED={SEED}:\n{shown}"


def test_legal_operators_agree_with_an_oracle() -> None:
    counts: Counter[str] = Counter()
    found = []
    for i in range(CASES):
        case = draw(np.random.default_rng((SEED, i)))
        text = disagreement(case, counts)
        if text and listed(case):
            counts["listed"] += 1
        elif text:
            found.append(f"#{i} {case}: {text[:300]}")
    report(found, counts, "legal operators")


def test_broken_operators_are_refused() -> None:
    counts: Counter[str] = Counter()
    found = []
    for i in range(CASES // 4):
        case = broken(np.random.default_rng((SEED, i, 1)))
        try:
            model = case.model()
        except (TypeError, ValueError):
            counts["no model"] += 1
            continue
        try:
            run_cpu(model, case.feeds())
            text = "was run"
        except HeteroError as error:
            counts[type(error).__name__] += 1
            continue
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        if not listed(case):
            found.append(f"#{i} {case}: {text[:300]}")
    report(found, counts, "broken operators")


def test_graphs_as_written_transformed_and_cut_agree() -> None:
    found = []
    random = np.random.default_rng((SEED, 2))
    raw = {"DISABLE_TRANSFORMATIONS": True}
    with hetero.Core(executor="inprocess", devices={"CPU": 2}) as core:
        for _ in range(CASES // 20):
            seed = int(random.integers(1 << 30))
            model = random_model(seed, 4 + seed % 25)
            given = feeds(model, seed)
            wanted = run_onnxruntime(model.to_proto(), given)
            pins = random_affinity(model, ["ORT", "CPU.0", "CPU.1"], seed)
            ways: list[tuple[str, str, dict[str, Any], dict[str, str] | None]] = [
                ("as written", "CPU", raw, None),
                ("transformed", "CPU", {}, None),
                ("cut", "HETERO:ORT,CPU.0,CPU.1", {}, pins),
            ]
            for name, device, config, affinity in ways:
                with core.compile_model(model, device, config, affinity=affinity) as compiled:
                    if text := differences(list(compiled(given).to_tuple()), wanted):
                        found.append(f"graph seed {seed} {name}: {text}")
    report(found, Counter(), "graphs")
