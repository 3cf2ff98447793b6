"""Thread budgets: devices of one node share its cores."""

from __future__ import annotations

import pytest

from hetero.scheduler.thread_budget import plan_shares, thread_shares
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.placement import alone
from tests.scheduler.models import chain


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
def test_budgets_add_up_to_cores_and_respect_user_values(
    cores: int, names: list[str], user_threads: dict[str, int], shares: list[int]
) -> None:
    rows = [device(name, cores) for name in names]
    assert list(thread_shares(rows, user_threads).values()) == shares


def test_each_node_divides_its_own_cores() -> None:
    rows = [device("ORT.0", 8), device("GPU", 1), device("ORT.1", 4, "m"), device("CPU", 4, "m")]
    assert thread_shares(rows, {}) == {"ORT.0": 8, "GPU": 1, "ORT.1": 2, "CPU": 2}


def test_removed_device_keeps_its_budget() -> None:
    plan, sources = chain("TOY.0", "TOY.1")
    shares = plan_shares(alone(plan), sources, [device("TOY.0", 8)], ())
    assert shares == {"TOY.0": 8, "TOY.1": 1}
