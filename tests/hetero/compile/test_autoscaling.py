"""Autoscaling of replicas: the policy alone, and replicas of a model behind a gate."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from hetero.compile.autoscaling import Autoscaler, ScalingPolicy
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import InferenceError, PropertyError, UnknownDeviceError
from tests.support.core_fixtures import core_fixture
from tests.support.gated_plugin import GatedPlugin
from tests.support.models import branches, branches_output
from tests.support.stateful_models import running_sum

DEVICES = "HETERO:GATED.0,GATED.1,GATED.2"
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
PATIENCE_S = 60


core = core_fixture(devices={"GATED": 3}, plugins=[GatedPlugin])


def policy(down_delay_s: float = 10.0) -> ScalingPolicy:
    return ScalingPolicy(1, 4, 2.0, up_delay_s=1.0, down_delay_s=down_delay_s)


def decisions(policy: ScalingPolicy, loads: list[tuple[float, int]]) -> list[int]:
    """Return the numbers of replicas after (seconds, number of requests)."""
    replicas = [policy.minimum]
    for now_s, num_requests in loads:
        replicas.append(policy.decide(now_s, num_requests, replicas[-1]))
    return replicas[1:]


def test_policy_follows_the_load_after_its_delays():
    loads = [(0.0, 8), (0.5, 8), (1.0, 8), (2.0, 1), (11.0, 1), (12.0, 1)]
    assert decisions(policy(), loads) == [1, 1, 4, 4, 4, 1]


def test_policy_ignores_short_changes():
    loads = [(0.0, 8), (0.5, 1), (1.0, 8), (1.9, 8), (2.0, 8), (3.0, 1), (12.0, 8), (14.0, 1)]
    assert decisions(policy(), loads) == [1, 1, 1, 1, 4, 4, 4, 4]


def test_policy_takes_the_least_change_within_its_delay():
    assert decisions(policy(), [(0.0, 8), (0.5, 3), (1.0, 8)]) == [1, 1, 2]
    assert decisions(policy(1.0), [(0.0, 8), (1.0, 8), (2.0, 1), (2.5, 5), (3.0, 1)])[-1] == 3


def test_policy_starts_a_delay_when_the_load_changes_direction():
    scaling_policy = policy()
    steps = [(0.0, 8, 3), (0.5, 2, 3), (10.4, 2, 3), (10.5, 2, 3), (11.0, 4, 1), (11.9, 4, 1)]
    assert [scaling_policy.decide(*step) for step in steps] == [3, 3, 3, 1, 1, 1]


def test_policy_stays_within_its_bounds():
    assert decisions(policy(0.0), [(0.0, 99), (1.0, 99), (2.0, 0)]) == [1, 4, 1]


def test_failed_start_is_repeated_after_ten_seconds():
    times = []

    def start_replica(number):
        times.append((now_s, number))
        raise InferenceError("no device is free")

    scaler = Autoscaler(None, start_replica, ScalingPolicy(1, 4, 1.0, up_delay_s=0.0))
    scaler._replicas[0].num_requests = 4
    for now_s in (0.0, 9.99, 10.0, 19.99, 20.0):
        scaler.scale(now_s)
    assert times == [(0.0, 0), (10.0, 0), (20.0, 0)]
    assert scaler.num_replicas == 1


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_replicas_start_with_the_load_and_stop_without_losing_requests(core):
    config = {"REPLICAS": "1..3", "VERIFY": "NO"}
    with core.compile_model(branches(), DEVICES, config) as compiled, GatedPlugin.closed():
        scaler = compiled.target.autoscaler
        assert scaler is not None
        assert compiled.num_replicas == 1
        scaler.policy.up_delay_s = scaler.policy.down_delay_s = 0.0
        requests = [compiled.create_infer_request() for _ in range(12)]
        for factor, request in enumerate(requests):
            request.start_async({"x": X * factor})
        wait_until(lambda: compiled.num_replicas == 3)
        # Requests that start now use the new replicas.
        later_requests = [compiled.create_infer_request() for _ in range(12)]
        for factor, request in enumerate(later_requests):
            request.start_async({"x": X * factor})
        scaler.policy.maximum = 1  # the last replicas stop, with requests in flight
        wait_until(lambda: compiled.num_replicas < 3)
        GatedPlugin.gate.set()
        for started in (requests, later_requests):
            for factor, request in enumerate(started):
                request.wait()
                expected = branches_output(X * factor)
                np.testing.assert_allclose(request.results["y"], expected, rtol=1e-5)
        wait_until(lambda: compiled.num_replicas == 1)
        wait_until(lambda: scaler.num_requests == 0)
        assert [count for _, count in scaler.history] == [1, 2, 3, 2, 1]
    assert compiled.num_replicas == 1


def test_range_counts_towards_the_optimal_number_of_requests(core):
    def compile_for(replicas: str) -> CompiledModel:
        return core.compile_model(branches(), DEVICES, {"REPLICAS": replicas, "VERIFY": "NO"})

    with compile_for("1..3") as scaled, compile_for("1") as single:
        name = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"
        assert scaled.get_property(name) == 3 * single.get_property(name)
        assert scaled.get_property("REPLICAS") == "1..3"


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ("3..1", r"expected MIN\.\.MAX with 1 <= MIN <= MAX"),
        ("0..2", r"expected MIN\.\.MAX with 1 <= MIN <= MAX"),
        ("1..9", r"at most 3, one replica for each .* got 9\. List more devices, start"),
    ],
)
def test_range_outside_the_devices_raises(core, replicas, message):
    with pytest.raises(PropertyError, match=message):
        core.compile_model(branches(), DEVICES, {"REPLICAS": replicas, "VERIFY": "NO"})


def test_range_for_a_model_with_states_raises(core):
    model = core.read_model(running_sum(), states={"before": "after"})
    with pytest.raises(PropertyError, match="has states, which belong to a replica") as caught:
        core.compile_model(model, DEVICES, {"REPLICAS": "1..2", "VERIFY": "NO"})
    assert caught.value.property == "REPLICAS"


# REPLICAS=auto.


@pytest.mark.parametrize(
    ("device", "maximum"),
    [("GATED", 3), ("GATED.1", 1), ("HETERO:GATED.0,GATED.2", 2), (DEVICES, 3)],
)
def test_auto_may_use_every_device_of_a_kind(core, device, maximum):
    with core.compile_model(branches(), device, {"REPLICAS": "auto", "VERIFY": "NO"}) as compiled:
        scaler = compiled.target.autoscaler
        assert scaler is not None
        assert (scaler.policy.minimum, scaler.policy.maximum) == (1, maximum)
        assert compiled.num_replicas == 1
        np.testing.assert_allclose(compiled({"x": X})["y"], branches_output(X), rtol=1e-5)


def test_auto_follows_the_load_without_losing_requests(core):
    config = {"REPLICAS": "auto", "VERIFY": "NO"}
    with core.compile_model(branches(), "GATED", config) as compiled, GatedPlugin.closed():
        scaler = compiled.target.autoscaler
        assert scaler is not None
        scaler.policy.up_delay_s = scaler.policy.down_delay_s = 0.0
        requests = [compiled.create_infer_request() for _ in range(20)]
        for factor, request in enumerate(requests):
            request.start_async({"x": X * factor})
        wait_until(lambda: compiled.num_replicas == 3)
        GatedPlugin.gate.set()
        for factor, request in enumerate(requests):
            request.wait()
            expected = branches_output(X * factor)
            np.testing.assert_allclose(request.results["y"], expected, rtol=1e-5)
        wait_until(lambda: compiled.num_replicas == 1)


def test_auto_pairs_devices_of_each_kind(core):
    pins = {"tanh": "CPU"}
    config = {"REPLICAS": "auto", "VERIFY": "NO"}
    with core.compile_model(branches(), f"{DEVICES},CPU", config, affinity=pins) as compiled:
        scaler = compiled.target.autoscaler
        assert scaler is not None
        assert scaler.policy.maximum == 3
        replica = scaler._start_replica(1)
        assert set(replica.plan.devices) == {"GATED.2", "CPU"}
        replica.close()


def test_auto_gives_a_model_with_states_one_replica(core):
    model = core.read_model(running_sum(), states={"before": "after"})
    with core.compile_model(model, "GATED", {"REPLICAS": "auto", "VERIFY": "NO"}) as compiled:
        assert compiled.target.autoscaler is None
        assert compiled.num_replicas == 1


# Devices that a cluster's autoscaler has to start.


@pytest.mark.parametrize(
    ("device", "config", "count"),
    [
        ("HETERO:GATED.0,GATED.4", {}, 2),
        ("GATED", {"REPLICAS": 5}, 2),
        ("GATED", {"REPLICAS": "1..4"}, 1),
    ],
)
def test_missing_devices_are_requested(
    core,
    device,
    config,
    count,
    monkeypatch,
):
    requests: list[int] = []

    def add_nodes(count: int, is_enough: Callable[[], bool]) -> bool:
        requests.append(count)
        return is_enough()

    monkeypatch.setattr(core.executor, "add_nodes", add_nodes)
    with pytest.raises((UnknownDeviceError, PropertyError)):
        core.compile_model(branches(), device, config)
    assert requests == [count]


def test_replicas_of_a_name_without_id_use_all_its_devices(core):
    with core.compile_model(
        branches(), "HETERO:GATED", {"REPLICAS": 3, "VERIFY": "NO"}
    ) as compiled:
        devices = {subgraph.device for subgraph in compiled.subgraphs}
    assert devices == {"GATED.0", "GATED.1", "GATED.2"}
