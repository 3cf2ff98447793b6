"""Three hosts with a network of their own: a cut link, a host without power, one that joins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.driver import CUT_S, HEALED_S, SHORT_S
from tests.hosts.network import network, why_not

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts]
ROOT = Path(__file__).parents[2]
#: Seconds from a fault that something can be done about to the next answer.
RECOVERY_S = 60.0
#: Seconds after which a head that is busy, and not cut off, would be given up.
BUSY_S = 25.0
#: What a request may be late: a busy machine, not the system, decides it.
LATE_S = 30.0
Run = Callable[..., dict[str, Any]]
RUN_S = 400.0


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Return what runs a scenario of the driver on hosts of its own; each runs once."""
    if reason := why_not():
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        yield cache(_run)


def _run(scenario: str, hosts: int = 3) -> dict[str, Any]:
    with network() as net, tempfile.TemporaryFile("w+") as errors:
        for host in range(1, hosts + 1):
            net.add(host)
        command = [sys.executable, "-m", "tests.hosts.driver", net.name, scenario]
        options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": errors}
        with net.start(1, command, **options) as driver:
            printed, _ = driver.communicate(timeout=RUN_S)
        errors.seek(0)
        assert driver.returncode == 0, errors.read()[-3000:]
        answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return answer


def nothing_amiss(found: dict[str, Any]) -> None:
    """Every request was answered, once and rightly."""
    assert found["requests"] > 0
    counts = {name: found[name] for name in ("lost", "duplicated", "wrong")}
    assert counts == {"lost": 0, "duplicated": 0, "wrong": 0}, json.dumps(found)


def test_a_model_runs_over_three_hosts(run: Run) -> None:
    found = run("everywhere")
    assert set(found["devices"].values()) == {"host1", "host2", "host3"}
    nothing_amiss(found)


def test_a_deadline_holds_while_a_link_is_cut(run: Run) -> None:
    how, after_s = run("cut")["short"]
    assert how in ("answered", "DeadlineError", "DeviceLostError")
    assert after_s < SHORT_S + LATE_S


def test_no_answer_is_lost_when_a_link_is_cut_and_healed(run: Run) -> None:
    found = run("cut")
    nothing_amiss(found)
    assert found["recovery_s"]["healed"] < RECOVERY_S
    assert found["longest_gaps_s"]["cut"] < CUT_S  # others go on before it is healed


@pytest.mark.parametrize("scenario", ["deaf", "mute", "slow"])
def test_no_answer_is_lost_when_a_host_is_half_cut_or_slow(run: Run, scenario: str) -> None:
    found = run(scenario)
    nothing_amiss(found)
    assert max(found["recovery_s"].values()) < RECOVERY_S
    assert max(found["longest_gaps_s"].values()) < CUT_S  # others go on meanwhile


def test_no_answer_is_lost_when_a_link_is_cut_again_and_again(run: Run) -> None:
    nothing_amiss(run("flapping"))


def test_no_answer_is_lost_over_a_link_that_loses_and_delays(run: Run) -> None:
    nothing_amiss(run("lossy"))


def test_texts_go_on_before_a_host_that_has_layers_is_reached_again(run: Run) -> None:
    for name, found in run("texts").items():
        assert len(found["stages"]) == 3, name
        assert found["right"], name
        assert found["gap_s"] < HEALED_S, name


def test_requests_that_need_no_head_go_on_while_it_is_cut_off(run: Run) -> None:
    nothing_amiss(run("head_away", hosts=2))


def test_requests_go_on_elsewhere_when_a_host_loses_its_power(run: Run) -> None:
    found = run("killed")
    nothing_amiss(found)
    assert found["recovery_s"]["killed"] < RECOVERY_S


def test_a_host_without_power_is_not_listed(run: Run) -> None:
    assert set(run("killed")["devices"].values()) == {"host1", "host2"}


def test_a_host_that_joins_is_used(run: Run) -> None:
    found = run("added", hosts=2)
    assert set(found["devices"].values()) == {"host1", "host2", "host3"}
    nothing_amiss(found["before"])
    nothing_amiss(found["with it"])


def test_a_head_that_is_cut_off_is_told_sooner_than_one_that_is_busy(run: Run) -> None:
    told = run("head_cut", hosts=2)["told"]
    assert [name for name, _ in told] == ["ClusterError", "ClusterError"]
    assert max(after_s for _, after_s in told) < BUSY_S
