"""Thread budgets: devices of one node share its cores."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.scheduler.thread_budget import plan_shares, thread_shares
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.placement import share, single_placement
from tests.scheduler.models import chain, diamond


def device(name: str, cores: int, node: str = "n") -> DeviceDescriptor:
    return DeviceDescriptor(name, name.partition(".")[0], "0", node, num_threads=cores)


@pytest.mark.parametrize(
    ("cores", "names", "user_threads", "shares"),
    [
        (8, ["ORT"], {}, [8]),
        (8, ["ORT", "CPU"], {}, [4, 4]),
        (8, ["ORT.0", "ORT.1", "CPU"], {}, [3, 3, 2]),
        (2, ["ORT.0", "ORT.1", "CPU"], {}, [1, 1, 1]),
        (1, ["ORT", "CPU"], {}, [1, 1]),
        (8, ["ORT", "CPU"], {"ORT": 0}, [4, 4]),
        (8, ["ORT", "CPU"], {"ORT": 6}, [6, 2]),
        (8, ["ORT", "CPU"], {"ORT": 8}, [8, 1]),
        (8, ["ORT", "CPU"], {"ORT": 3, "CPU": 2}, [3, 2]),
        (2, ["ORT"], {"ORT": 5}, [5]),
    ],
)
def test_budgets_add_up_to_cores_and_respect_user_values(cores, names, user_threads, shares):
    rows = [device(name, cores) for name in names]
    assert list(thread_shares(rows, user_threads).values()) == shares


@pytest.mark.parametrize(
    ("cores", "work", "shares"),
    [
        (8, {"ORT": 3.0, "CPU": 1.0}, [6, 2]),
        (8, {"ORT": 1e-6, "CPU": 1.0}, [1, 8]),
        (2, {"ORT": 1.0, "CPU": 1e-6}, [2, 1]),
        (2, {"ORT": 1.0, "CPU": 0.8}, [1, 1]),
        (2, {"ORT": 1.0, "CPU": 3.0}, [1, 2]),
        (8, {"ORT": 0.0, "CPU": 0.0}, [4, 4]),
        (8, {"ORT": 1.0}, [4, 4]),
    ],
)
def test_budgets_are_in_proportion_to_work(cores, work, shares):
    rows = [device(name, cores) for name in ("ORT", "CPU")]
    assert list(thread_shares(rows, {}, work).values()) == shares


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.integers(2, 64))
def test_budgets_use_all_cores_and_round_quotas(work, cores):
    names = [f"ORT.{i}" for i in range(len(work))]
    rows = [device(name, cores) for name in names]
    shares = thread_shares(rows, {}, dict(zip(names, work, strict=True)))
    assert cores <= sum(shares.values()) <= cores + len(work) - 1
    for name, amount in zip(names, work, strict=True):
        quota = cores * (amount / sum(work) if sum(work) else 1 / len(work))
        assert max(1, math.floor(quota - 1e-6)) <= shares[name] <= math.ceil(quota + 1e-6) or (
            shares[name] == 1
        )


def test_each_node_divides_its_own_cores():
    rows = [device("ORT.0", 8), device("GPU", 1), device("ORT.1", 4, "m"), device("CPU", 4, "m")]
    assert thread_shares(rows, {}) == {"ORT.0": 8, "GPU": 1, "ORT.1": 2, "CPU": 2}


def test_removed_device_keeps_its_budget():
    plan, sources = chain("TOY.0", "TOY.1")
    shares = plan_shares(single_placement(plan), sources, [device("TOY.0", 8)])
    assert shares == {"TOY.0": 8, "TOY.1": 1}


ROWS = [device(f"TOY.{i}", 8) for i in range(4)]


def test_chain_shares_cores_only_if_requests_overlap():
    plan, sources = chain("TOY.0", "TOY.1")
    stages = tuple(replace(s, work=w) for s, w in zip(plan.stages, (1.0, 3.0), strict=True))
    placement = single_placement(replace(plan, stages=stages))
    shares = [plan_shares(placement, sources, ROWS, requests_overlap=o) for o in (True, False)]
    assert shares == [{"TOY.0": 2, "TOY.1": 6}, {"TOY.0": 8, "TOY.1": 8}]


def test_parallel_branches_share_cores_of_one_request():
    plan, sources = diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.3"))
    shares = plan_shares(single_placement(plan), sources, ROWS, requests_overlap=False)
    assert shares == {"TOY.0": 8, "TOY.1": 4, "TOY.2": 4, "TOY.3": 8}


def test_other_devices_get_a_share_of_the_mean_device():
    plan, sources = chain("TOY.0", "TOY.1")
    for overlap in (True, False):
        others = ("TOY.2", "TOY.3")
        shares = plan_shares(
            single_placement(plan), sources, ROWS, others, requests_overlap=overlap
        )
        assert shares == {"TOY.0": 2, "TOY.1": 2}


def test_replica_counts_by_its_share_of_requests():
    plan, sources = chain("TOY.0", "TOY.1")
    other, more = chain("TOY.0", "TOY.2")
    placement = share([plan, other], [0.75, 0.25])
    # Per request, TOY.0 runs once, TOY.1 0.75 times and TOY.2 0.25 times.
    shares = plan_shares(placement, [*sources, more[1]], ROWS)
    assert shares == {"TOY.0": 4, "TOY.1": 3, "TOY.2": 1}
