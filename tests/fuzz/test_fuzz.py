"""Differential fuzzing: random operators and graphs against two oracles; invalid ones are refused.

Each run has the same cases. ``HETERO_FUZZ_CASES`` sets their number and ``HETERO_FUZZ_SEED`` the
seed. `disagreements.txt` lists known differences with their reasons.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.conformance.drawn_cases import (
    OperatorCase,
    invalid_case,
    random_case,
    vary,
)
from hetero.devices.errors import HeteroError
from hetero.devices.kernels.microsoft import MICROSOFT
from tests.backend_suite.expected_failures import read_expected_failures
from tests.fuzz.oracles import (
    IN_FLOAT32,
    ORACLES,
    WORKER,
    NoResultError,
    differences,
    run_onnxruntime,
)
from tests.support.graphs import feeds, random_affinity, random_model
from tests.support.operators import OPERATORS
from tests.support.small_models import run_cpu

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CASES = int(os.environ.get("HETERO_FUZZ_CASES", "1000"))
SEED = int(os.environ.get("HETERO_FUZZ_SEED", "0"))
#: Rows of the table whose operators onnx defines, so that it is known which changes are allowed.
VARIABLE_ROWS = [row for row in OPERATORS if row.domain != MICROSOFT]
LISTED_PATTERNS = read_expected_failures(Path(__file__).with_name("disagreements.txt"))


@pytest.fixture(autouse=True)
def _quiet():
    print(f"HETERO_FUZZ_SEED={SEED}")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
    WORKER.close()


def is_listed(case: OperatorCase) -> bool:
    return any(fnmatchcase(str(case), pattern.replace("[", "[[]")) for pattern in LISTED_PATTERNS)


def disagreement(case: OperatorCase, counts: Counter[str]) -> str:
    """Return the differences of device CPU from every oracle; empty if it agrees with one."""
    results, refusals = {}, set()
    for name, run in ORACLES.items():
        try:
            results[name] = run(case)
        except NoResultError:
            counts[f"not for {name}"] += 1
        except Exception as error:
            counts[f"refused by {name}"] += 1
            refusals.add(f"{name}: {error}")
    if not results:
        counts["no oracle"] += 1
        return ""
    counts["compared"] += 1
    try:
        ours = run_cpu(case.model(), case.feeds())
    except HeteroError as error:
        ran = ", ".join(results)
        return "" if refusals else f"{type(error).__name__}: {error}; {ran} run it"
    texts = {n: differences(ours, y, rounds=n == IN_FLOAT32) for n, y in results.items()}
    return "" if not all(texts.values()) else "; ".join(f"{n}: {d}" for n, d in texts.items())


def report(failures: list[str], counts: Counter[str], subject: str) -> None:
    print(f"{subject}: {dict(counts)}")
    failure_lines = "\n".join(failures[:200])
    assert not failures, f"{len(failures)} disagreements, HETERO_FUZZ_SEED={SEED}:\n{failure_lines}"


def test_legal_operators_agree_with_an_oracle():
    counts: Counter[str] = Counter()
    failures = []
    for i in range(CASES):
        case = random_case(np.random.default_rng((SEED, i)))
        text = disagreement(case, counts)
        if text and is_listed(case):
            counts["listed"] += 1
        elif text:
            failures.append(f"#{i} {case}: {text[:300]}")
    report(failures, counts, "legal operators")


def test_varied_cases_of_the_table_agree_with_an_oracle():
    counts: Counter[str] = Counter()
    failures = []
    for i in range(CASES // 4):
        random = np.random.default_rng((SEED, i, 6))
        row = VARIABLE_ROWS[random.integers(len(VARIABLE_ROWS))]
        versions = list(row.versions())
        op_type, opset = versions[random.integers(len(versions))]
        cases = list(row.cases(op_type, opset))
        case = vary(cases[random.integers(len(cases))], random)
        text = disagreement(case, counts)
        if text and is_listed(case):
            counts["listed"] += 1
        elif text:
            failures.append(f"#{i} {case}: {text[:300]}")
    report(failures, counts, "cases of the table")


def test_invalid_operators_are_refused():
    counts: Counter[str] = Counter()
    failures = []
    for i in range(CASES // 4):
        case = invalid_case(np.random.default_rng((SEED, i, 1)))
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
        if not is_listed(case):
            failures.append(f"#{i} {case}: {text[:300]}")
    report(failures, counts, "invalid operators")


def test_transformed_and_split_graphs_agree_with_onnxruntime():
    failures = []
    random = np.random.default_rng((SEED, 2))
    raw = {"DISABLE_TRANSFORMATIONS": True}
    with hetero.Core(executor="inprocess", devices={"CPU": 2}) as core:
        for _ in range(CASES // 20):
            seed = int(random.integers(1 << 30))
            model = random_model(seed, 4 + seed % 25)
            inputs = feeds(model, seed)
            expected = run_onnxruntime(model.to_proto(), inputs)
            pins = random_affinity(model, ["ORT", "CPU.0", "CPU.1"], seed)
            variants: list[tuple[str, str, dict[str, Any], dict[str, str] | None]] = [
                ("as written", "CPU", raw, None),
                ("transformed", "CPU", {}, None),
                ("cut", "HETERO:ORT,CPU.0,CPU.1", {}, pins),
            ]
            for name, device, config, affinity in variants:
                with core.compile_model(model, device, config, affinity=affinity) as compiled:
                    if text := differences(list(compiled(inputs).to_tuple()), expected):
                        failures.append(f"graph seed {seed} {name}: {text}")
    report(failures, Counter(), "graphs")
