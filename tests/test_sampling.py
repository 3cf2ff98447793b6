"""The sample of a large family that a plain run keeps."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sampling import mark_cases_outside_samples

DEVICES, SHAPES = ("CPU", "ORT", "OV"), ([1], [2, 3], [4, 5, 6], [7])


class Case:
    """An item of pytest with one mark."""

    obj = "a test"

    def __init__(self, mark: Any, device: str, shape: list[int]) -> None:
        self.name = f"test_run[{device}-{shape}]"
        self.callspec = SimpleNamespace(params={"device": device, "shape": shape})
        self.mark, self.is_slow = mark, False

    def get_closest_marker(self, name: str) -> Any:
        return self.mark if name == "sampled" else None

    def add_marker(self, mark: Any) -> None:
        assert mark == pytest.mark.slow
        self.is_slow = True


def sample(*arguments: Any) -> set[tuple[str, int]]:
    mark = pytest.mark.sampled(*arguments).mark if arguments else None
    cases: list[Any] = [Case(mark, *values) for values in product(DEVICES, SHAPES)]
    mark_cases_outside_samples(cases)
    plain_cases = [case.callspec.params for case in cases if not case.is_slow]
    return {(values["device"], len(values["shape"])) for values in plain_cases}


def test_unmarked_family_stays_whole():
    assert len(sample()) == 9  # two of the four shapes have one dimension


def test_one_in_n_cases_is_plain():
    assert len(sample(1)) == 9
    assert 1 <= len(sample(3)) < 9
    assert sample(3) == sample(3)
    assert sample(10**9) == set()


@pytest.mark.parametrize("interval", [4, 10**9])
def test_each_value_of_named_parameters_is_plain(interval):
    assert {device for device, _ in sample(interval, "device")} == set(DEVICES)
    plain_cases = sample(interval, "device", "shape")
    assert {device for device, _ in plain_cases} == set(DEVICES)
    assert {rank for _, rank in plain_cases} == {1, 2, 3}
    assert len(sample(10**9, "device")) == 3
    assert len(plain_cases) < 9
