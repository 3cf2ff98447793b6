"""A Ray cluster of three simulated hosts: cut links, lost power, lossy links, a new host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.driver import CUT_S, FAULT_S, SHORT_TIMEOUT_S
from tests.hosts.network import network, reason_unavailable

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts]
ROOT = Path(__file__).parents[2]
#: Maximum time from a recoverable fault to the next result.
RECOVERY_S = 60.0
#: Time after which a busy head counts as lost; a disconnected head is detected earlier.
BUSY_S = 25.0
#: Delay of a deadline's error that a busy machine may cause.
TOLERANCE_S = 30.0
Run = Callable[..., dict[str, Any]]
RUN_S = 400.0


@pytest.fixture(scope="module")
def run_scenario():
    """Return a function that runs a scenario of the driver on new hosts, once per scenario."""
    if reason := reason_unavailable():
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
            stdout, _ = driver.communicate(timeout=RUN_S)
        errors.seek(0)
        assert driver.returncode == 0, errors.read()[-3000:]
        answer: dict[str, Any] = json.loads(stdout.splitlines()[-1])
        return answer


def check_results(report: dict[str, Any]) -> None:
    """Check that every request has exactly one result, which is correct."""
    assert report["requests"] > 0
    counts = {name: report[name] for name in ("lost", "duplicated", "wrong")}
    assert counts == {"lost": 0, "duplicated": 0, "wrong": 0}, json.dumps(report)


def test_model_runs_on_three_hosts(run_scenario):
    report = run_scenario("three_hosts")
    assert set(report["devices"].values()) == {"host1", "host2", "host3"}
    check_results(report)


def test_deadline_holds_while_link_is_cut(run_scenario):
    outcome, after_s = run_scenario("link_cut")["short"]
    assert outcome in ("answered", "DeadlineError", "DeviceLostError")
    assert after_s < SHORT_TIMEOUT_S + TOLERANCE_S


def test_cut_link_loses_no_result(run_scenario):
    report = run_scenario("link_cut")
    check_results(report)
    assert report["recovery_s"]["healed"] < RECOVERY_S
    assert report["longest_gaps_s"]["cut"] < CUT_S  # other devices continue during the fault


@pytest.mark.parametrize("scenario", ["incoming_loss", "outgoing_loss", "slow_host"])
def test_one_way_loss_or_slow_host_loses_no_result(run_scenario, scenario):
    report = run_scenario(scenario)
    check_results(report)
    assert max(report["recovery_s"].values()) < RECOVERY_S
    assert max(report["longest_gaps_s"].values()) < CUT_S  # other devices continue during the fault


def test_flapping_link_loses_no_result(run_scenario):
    check_results(run_scenario("flapping_link"))


def test_lossy_link_loses_no_result(run_scenario):
    check_results(run_scenario("lossy_link"))


def test_generation_continues_while_host_is_lost(run_scenario):
    for name, report in run_scenario("generation").items():
        assert len(report["stages"]) == 3, name
        assert report["is_correct"], name
        assert report["gap_s"] < FAULT_S, name


def test_requests_continue_without_the_head(run_scenario):
    check_results(run_scenario("head_disconnected_without_requests", hosts=2))


def test_requests_continue_after_host_loses_power(run_scenario):
    report = run_scenario("host_killed")
    check_results(report)
    assert report["recovery_s"]["killed"] < RECOVERY_S


def test_host_without_power_is_not_listed(run_scenario):
    assert set(run_scenario("host_killed")["devices"].values()) == {"host1", "host2"}


def test_joining_host_is_used(run_scenario):
    report = run_scenario("host_added", hosts=2)
    assert set(report["devices"].values()) == {"host1", "host2", "host3"}
    check_results(report["before"])
    check_results(report["after"])


def test_lost_head_is_reported_before_busy_timeout(run_scenario):
    errors = run_scenario("head_disconnected_with_requests", hosts=2)["errors"]
    assert [name for name, _ in errors] == ["ClusterError", "ClusterError"]
    assert max(after_s for _, after_s in errors) < BUSY_S
