"""Calibration: settled samples, load factors, and disturbed measurements."""

from __future__ import annotations

import pytest

from hetero.planning.cost.calibration import (
    DEFAULT_CALL_S,
    LoadRound,
    fit_load_factors,
    has_settled,
    low_percentile,
    rounds_disagree,
    was_disturbed,
)


def test_settled_and_disturbed_samples():
    regular = [1.0, 1.02, 1.01, 1.03, 1.0] * 4
    spiky = [sample * (170 if i % 3 == 1 else 1) for i, sample in enumerate(regular)]
    assert low_percentile(spiky) == pytest.approx(low_percentile(regular), rel=0.03)
    assert has_settled(regular)
    assert has_settled(spiky)
    assert not has_settled(regular[:5])
    busy = [*regular, *(2 * sample for sample in regular)]
    assert not has_settled(busy)
    assert was_disturbed(busy)
    assert not was_disturbed(spiky)


def test_fit_load_factors():
    """A call takes 1 ms; another process uses the core for 9 ms of one round, 1 ms of another."""
    fast = LoadRound(0.01, 0.011, 0.012)
    rounds = [LoadRound(0.01, 0.030, 0.040), LoadRound(0.02, 0.030, 0.032), fast, fast, fast]
    load = fit_load_factors(rounds)
    assert load.overhead_s == pytest.approx(0.001)
    assert load.time_factor == pytest.approx(1.1)
    multi_stream = fit_load_factors([LoadRound(0.010, 0.009, 0.008)])
    assert (multi_stream.time_factor, multi_stream.overhead_s) == (pytest.approx(0.8), 0.0)
    default = fit_load_factors([])
    assert (default.time_factor, default.overhead_s) == (1.0, DEFAULT_CALL_S)
    assert default.source == "estimated"


def test_rounds_disagree_if_fastest_two_differ():
    loads = {False: ([1.0, 1.2, 9.0], [1.0]), True: ([1.0, 1.8, 1.9],)}
    for expected, cases in loads.items():
        for case in cases:
            assert (
                rounds_disagree([LoadRound(0.01, 0.01, 0.01 * load) for load in case]) == expected
            )
