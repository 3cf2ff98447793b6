"""The sample of a large family of cases that a plain run keeps; its other cases are slow.

A test marked ``sampled(N, "device", "opset")`` keeps one in N of its cases, and also one case for
each value of the parameters `device` and `opset`. The names of the cases alone decide, so that each
run and each process keeps the same cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import pytest


def mark_cases_outside_samples(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of sampled tests slow, except the sample."""
    families: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            families.setdefault((getattr(item, "obj", None), mark.args), []).append(item)
    for (_, (interval, *parameters)), cases in families.items():
        sample = _sample(cases, interval, parameters)
        for case in cases:
            if case not in sample:
                case.add_marker(pytest.mark.slow)


def _sample(
    cases: Sequence[pytest.Item], interval: int, parameters: Sequence[str]
) -> set[pytest.Item]:
    """Return one in `interval` cases, and others until each value of the parameters occurs."""
    ordered = sorted(cases, key=lambda case: (_hash(case) % interval != 0, _hash(case)))
    sample: set[pytest.Item] = set()
    values: set[tuple[str, object]] = set()
    for case in ordered:
        new_values = _values(case, parameters) - values
        if _hash(case) % interval == 0 or new_values:
            sample.add(case)
            values |= new_values
    return sample


def _hash(case: pytest.Item) -> int:
    return crc32(case.name.encode())


def _values(case: pytest.Item, parameters: Sequence[str]) -> set[tuple[str, object]]:
    """Return the case's values of the parameters; all but simple values are compared by identity.

    Cases of a product of parameters share their values.
    """
    values = case.callspec.params  # type: ignore[attr-defined]
    return {
        (name, value if isinstance(value, str | int | type) else id(value))
        for name in parameters
        for value in (values[name],)
    }
