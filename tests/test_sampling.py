"""The sample of a large family that a plain run keeps."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sampling import drop_slow_cases, mark_cases_outside_samples

DEVICES, SHAPES = ("CPU", "ORT", "OV"), ([1], [2, 3], [4, 5, 6], [7])


class Case:
    """The planned call of a test with one row of parameters."""

    def __init__(self, device: str, shape: list[int]) -> None:
        self.id = f"{device}-{shape}"
        self.params = {"device": device, "shape": shape}
        self.marks: list[Any] = []


def mark_cases(*arguments: Any) -> Any:
    """Return the cases of a test that is sampled, if there are arguments of its mark."""
    mark = pytest.mark.sampled(*arguments).mark if arguments else None
    definition = SimpleNamespace(name="test_run", iter_markers=lambda name: [mark] if mark else [])
    cases = [Case(*values) for values in product(DEVICES, SHAPES)]
    metafunc: Any = SimpleNamespace(definition=definition, _calls=cases)
    mark_cases_outside_samples(metafunc)
    return metafunc


def sample(*arguments: Any) -> set[tuple[str, int]]:
    plain_cases = [case.params for case in mark_cases(*arguments)._calls if not case.marks]
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


def test_mark_of_a_row_applies_to_its_cases():
    metafunc = mark_cases()
    for case in metafunc._calls:
        if case.params["device"] == "OV":
            case.marks.append(pytest.mark.sampled(10**9).mark)
    mark_cases_outside_samples(metafunc)
    drop_slow_cases(metafunc)
    assert [case.params["device"] for case in metafunc._calls] == ["CPU"] * 4 + ["ORT"] * 4


def test_slow_cases_are_dropped():
    metafunc = mark_cases(3)
    plain_cases = [case for case in metafunc._calls if not case.marks]
    drop_slow_cases(metafunc)
    assert metafunc._calls == plain_cases


def test_one_case_is_kept_if_all_are_slow():
    metafunc = mark_cases(10**9)
    first = metafunc._calls[0]
    drop_slow_cases(metafunc)
    assert metafunc._calls == [first]
    drop_slow_cases(metafunc)
    assert metafunc._calls == [first]
