"""The sample of a large family of cases that a plain run keeps; its other cases are slow.

A test marked ``sampled(N, "device", "opset")`` keeps one in N of its cases, and also one case for
each value of the parameters `device` and `opset`. The names of the cases alone decide, so that each
run and each process keeps the same cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest


def mark_cases_outside_samples(metafunc: pytest.Metafunc) -> None:
    """Mark the cases of a sampled test slow, except the sample.

    Rows of parameters may be marked instead of the test; each mark has its own sample.
    """
    families: dict[tuple[Any, ...], list[Any]] = {}
    test_marks = list(metafunc.definition.iter_markers("sampled"))
    for case in metafunc._calls:
        for mark in [mark for mark in case.marks if mark.name == "sampled"] or test_marks[:1]:
            families.setdefault(mark.args, []).append(case)
    for (interval, *parameters), cases in families.items():
        sample = _sample(metafunc.definition.name, cases, interval, parameters)
        for position, case in enumerate(cases):
            if position not in sample:
                case.marks.append(pytest.mark.slow.mark)


def drop_slow_cases(metafunc: pytest.Metafunc) -> None:
    """Drop slow cases, which a plain run would only deselect; keep one if all are slow.

    A third of all cases are slow, and each process spends a third of a millisecond on a case.
    """
    cases = metafunc._calls
    plain_cases = [case for case in cases if all(mark.name != "slow" for mark in case.marks)]
    metafunc._calls = plain_cases or cases[:1]


def _sample(name: str, cases: Sequence[Any], interval: int, parameters: Sequence[str]) -> set[int]:
    """Return the positions of one in `interval` cases, and of others for each parameter value."""
    hashes = [crc32(f"{name}[{case.id}]".encode()) for case in cases]
    order = sorted(range(len(cases)), key=lambda k: (hashes[k] % interval != 0, hashes[k]))
    sample: set[int] = set()
    values: set[tuple[str, object]] = set()
    for position in order:
        new_values = _values(cases[position], parameters) - values
        if hashes[position] % interval == 0 or new_values:
            sample.add(position)
            values |= new_values
    return sample


def _values(case: Any, parameters: Sequence[str]) -> set[tuple[str, object]]:
    """Return the case's values of the parameters; all but simple values are compared by identity.

    Cases of a product of parameters share their values.
    """
    return {
        (name, value if isinstance(value, str | int | type) else id(value))
        for name in parameters
        for value in (case.params[name],)
    }
