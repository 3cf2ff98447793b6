"""Properties in every scope: Core, HETERO, device, and a single compilation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices import COMMON_PROPERTIES, OPTIONAL_PROPERTIES, errors
from hetero.devices.plugin.program import Payload
from hetero.examples.third_party_plugin import DensePlugin
from hetero.properties.table import HETERO_PROPERTIES
from tests.scheduler.plugins import TwinPlugin
from tests.support.core_fixtures import core_fixture
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output, dense
from tests.support.pair_plugin import PairPlugin
from tests.support.rows import for_each_row

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
MUTABLE = [p.name for p in HETERO_PROPERTIES.values() if p.mutable]


core = core_fixture(plugins=[DensePlugin, PairPlugin, TwinPlugin, CountingPlugin])


# Known and unknown options.


@pytest.mark.parametrize("device", ["CPU", "ORT", "DENSE", "HETERO:ORT,CPU"])
@pytest.mark.parametrize("name", ["NUM_STREAM", "CACHE_MODE"])
def test_unknown_option_raises(core, device, name):
    for call in (
        lambda: core.compile_model(branches(), device, {name: "f32"}),
        lambda: core.set_property({name: "f32"}),
    ):
        with pytest.raises(errors.UnknownPropertyError, match=f"no property '{name}' on "):
            call()


def test_option_of_one_device_in_a_list(core):
    config = {"LOG_LEVEL": "log_error", "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "latency"}
    model = core.read_model(branches())
    config |= {"MODEL_DISTRIBUTION_POLICY": "PRIORITY"}
    with core.compile_model(model, "HETERO:ORT,CPU", config, affinity={"tanh": "CPU"}) as compiled:
        np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)
        assert compiled.get_property("LOG_LEVEL") == "LOG_ERROR"
        assert compiled.get_property("PERFORMANCE_HINT") == "LATENCY"
        assert "LOG_LEVEL" not in compiled.get_property("DEVICE_PROPERTIES")["CPU"]
    with pytest.raises(errors.UnknownPropertyError, match="EXECUTION_MODE_HINT"):
        core.compile_model(model, "ORT", {"EXECUTION_MODE_HINT": "ACCURACY"})


def test_num_requests_hint_limits_optimal_number(core):
    for hint, num_requests, expected in (
        ("", 0, 2),
        ("", 1, 1),
        ("THROUGHPUT", 5, 2),
        ("LATENCY", 1, 1),
    ):
        config = {"PERFORMANCE_HINT": hint, "PERFORMANCE_HINT_NUM_REQUESTS": num_requests}
        with core.compile_model(branches(), "CPU", config) as compiled:
            assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == expected
            assert len(hetero.AsyncInferQueue(compiled)) == expected


class ConcurrencyPlugin(DensePlugin):
    """A plugin that counts concurrent runs."""

    name = "MEET"
    running = 0
    max_running = 0
    gate = threading.Lock()
    #: Called during each run.
    during_run: Callable[[], object] = staticmethod(lambda: None)

    def compile(self, model: Any, config: Any) -> Any:
        program = super().compile(model, config)
        run = program.run

        def count_and_run(inputs: Any, context: Any) -> Any:
            cls = type(self)
            with cls.gate:
                cls.running += 1
                cls.max_running = max(cls.max_running, cls.running)
            try:
                cls.during_run()
                return run(inputs, context)
            finally:
                with cls.gate:
                    cls.running -= 1

        program.run = count_and_run
        return program


@pytest.mark.parametrize("exclusive", [True, False])
def test_exclusive_async_requests_run_sequentially(exclusive):
    ConcurrencyPlugin.max_running = 0
    barrier = threading.Barrier(3)
    # Three concurrent runs pass the barrier; sequential runs time out.
    ConcurrencyPlugin.during_run = staticmethod(
        lambda: _wait_at_barrier(barrier, 0.1 if exclusive else 30.0)
    )
    config = {"NUM_STREAMS": 3, "EXCLUSIVE_ASYNC_REQUESTS": exclusive}
    with hetero.Core(executor="inprocess", plugins=[ConcurrencyPlugin]) as core:
        models = [core.compile_model(dense(), "MEET", config) for _ in range(2)]
        requests = [m.create_infer_request() for m in (*models, models[0])]
        if not exclusive:
            requests = [models[0].create_infer_request() for _ in range(3)]
        for request in requests:
            request.start_async(np.ones((2, 3), np.float32))
        for request in requests:
            request.wait()
    assert ConcurrencyPlugin.max_running == (1 if exclusive else 3)


def _wait_at_barrier(barrier: threading.Barrier, timeout_s: float) -> None:
    try:
        barrier.wait(timeout_s)
    except threading.BrokenBarrierError:
        barrier.reset()


def test_exclusive_request_in_queue_can_be_cancelled():
    entered, leave = threading.Event(), threading.Event()
    ConcurrencyPlugin.during_run = staticmethod(lambda: (entered.set(), leave.wait(300)))
    config = {"NUM_STREAMS": 2, "EXCLUSIVE_ASYNC_REQUESTS": True}
    with hetero.Core(executor="inprocess", plugins=[ConcurrencyPlugin]) as core:
        compiled = core.compile_model(dense(), "MEET", config)
        first, second = compiled.create_infer_request(), compiled.create_infer_request()
        first.start_async(np.ones((2, 3), np.float32))
        assert entered.wait(300)
        second.start_async(np.ones((2, 3), np.float32))
        second.cancel()
        with pytest.raises(errors.RequestCancelledError):
            second.wait()
        leave.set()
        first.wait()


@pytest.mark.parametrize("enabled", [True, False])
def test_enable_mmap_for_blobs_and_caches(core, tmp_path, enabled, monkeypatch):
    is_mapped: list[bool] = []
    load = CountingPlugin.load

    def recording_load(self: Any, payload: Payload, model: Any, config: Any) -> Any:
        is_mapped.extend(not array.flags.owndata for array in payload.tensors.values())
        return load(self, payload, model, config)

    monkeypatch.setattr(CountingPlugin, "load", recording_load)
    path, cache = tmp_path / "m.hetero", {"CACHE_DIR": str(tmp_path / "cache")}
    with core.compile_model(branches(), "COUNT", cache) as compiled:
        compiled.export_model(path)
    core.set_property({"ENABLE_MMAP": enabled})
    with core.import_model(path) as imported:
        np.testing.assert_allclose(imported(X)["y"], branches_output(X), rtol=1e-5)
    with core.compile_model(branches(), "COUNT", cache) as compiled:
        assert compiled.get_property("LOADED_FROM_CACHE")
    assert is_mapped
    assert set(is_mapped) == {enabled}


@pytest.mark.parametrize("scope", [(), ("HETERO",), ("CPU",), ("ORT",), ("DENSE",)], ids=str)
def test_enable_mmap_can_be_disabled_in_every_scope(core, scope):
    core.set_property(*scope, {"ENABLE_MMAP": "NO"})
    assert core.get_property(*scope, "ENABLE_MMAP") is False


# Selection of devices.


@pytest.mark.parametrize(
    ("device", "device_id", "expected"),
    [
        ("TWIN", "1", "TWIN.1"),
        ("TWIN", 0, "TWIN.0"),
        ("TWIN.1", "1", "TWIN.1"),
        ("CPU", "0", "CPU"),
    ],
)
def test_device_id_selects_the_device(core, device, device_id, expected):
    with core.compile_model(dense(), device, {"DEVICE_ID": device_id}) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == [expected]
    assert set(core.query_model(dense(), device, {"DEVICE_ID": device_id}).values()) == {expected}


@pytest.mark.parametrize("device", ["CPU", "TWIN"])
def test_unknown_device_id_raises(core, device):
    with pytest.raises(errors.UnknownDeviceError, match=f"no device '{device}.7'"):
        core.compile_model(dense(), device, {"DEVICE_ID": "7"})


@pytest.mark.parametrize("device", ["TWIN.0", "HETERO:TWIN,CPU", "HETERO"])
def test_device_id_with_other_id_or_list_raises(core, device):
    with pytest.raises(errors.PropertyError, match="Name the devices with their ids"):
        core.compile_model(dense(), device, {"DEVICE_ID": "1"})


@pytest.mark.parametrize("scope", [(), ("HETERO",)], ids=str)
def test_multi_device_priorities_apply_to_bare_hetero(core, scope):
    core.set_property(*scope, {"MULTI_DEVICE_PRIORITIES": "CPU, ORT"})
    with core.compile_model(branches()) as compiled:
        assert compiled.get_property("MULTI_DEVICE_PRIORITIES") == ["CPU", "ORT"]
        assert compiled.get_property("EXECUTION_DEVICES") == ["CPU"]
    with core.compile_model(branches(), "ORT") as compiled:
        assert compiled.get_property("MULTI_DEVICE_PRIORITIES") == ["ORT"]
    with pytest.raises(errors.PropertyError, match="disagree"):
        core.compile_model(branches(), "HETERO:ORT,CPU")


@pytest.mark.parametrize("scope", [(), ("TWIN.1",)], ids=str)
def test_device_id_is_read_only(core, scope):
    with pytest.raises(errors.ReadOnlyPropertyError, match="DEVICE_ID is read-only"):
        core.set_property(*scope, {"DEVICE_ID": "1"})
    with pytest.raises(errors.ReadOnlyPropertyError):
        core.compile_model(dense(), "TWIN", {"DEVICE_PROPERTIES": {"TWIN": {"DEVICE_ID": "1"}}})


def test_devices_of_one_plugin_have_their_own_properties(core):
    first, second = (
        {
            name: core.get_property(device, name)
            for name in (
                "FULL_DEVICE_NAME",
                "DEVICE_ARCHITECTURE",
                "DEVICE_TOTAL_MEM_SIZE",
                "DEVICE_ID",
                "EXECUTION_DEVICES",
            )
        }
        for device in ("PAIR.left", "PAIR.right")
    )
    assert first["EXECUTION_DEVICES"] == ["PAIR.left"]
    assert all(first[name] != second[name] for name in first)


# set_property and get_property.


def test_set_property_values_are_read_back_typed(core):
    core.set_property("CPU", {"NUM_STREAMS": "4"})
    core.set_property("HETERO", {"PLAN_SEED": "3", "COLOCATION": '{"g": ["a"]}'})
    core.set_property({"PERF_COUNT": "YES", "REQUEST_TIMEOUT_S": 5})
    assert core.get_property("CPU", "NUM_STREAMS") == 4
    assert core.get_property("HETERO", "PLAN_SEED") == 3
    assert core.get_property("HETERO", "COLOCATION") == {"g": ["a"]}
    for scope in (("CPU",), ("DENSE",), ("HETERO",), ()):
        assert core.get_property(*scope, "PERF_COUNT") is True
    assert core.get_property("REQUEST_TIMEOUT_S") == 5.0
    with core.compile_model(branches(), "CPU") as compiled:
        assert compiled.get_property("NUM_STREAMS") == 4
        assert compiled.get_property("PLAN_SEED") == 3


def test_device_option_overrides_global_option(core):
    core.set_property("CPU", {"NUM_STREAMS": 2})
    core.set_property({"NUM_STREAMS": 3})
    assert core.get_property("CPU", "NUM_STREAMS") == 2
    assert core.get_property("ORT", "NUM_STREAMS") == 3
    with core.compile_model(branches(), "HETERO:CPU,ORT") as compiled:
        device_properties = compiled.get_property("DEVICE_PROPERTIES")
    assert {device: options["NUM_STREAMS"] for device, options in device_properties.items()} == {
        "CPU": 2,
        "ORT": 3,
    }


@pytest.mark.parametrize("name", ["REPLICAS", "VERIFY", "COST_FILE"])
def test_hetero_option_on_device_raises(core, name):
    with pytest.raises(errors.UnknownPropertyError, match="Set it for 'HETERO'"):
        core.set_property("CPU", {name: "2"})
    core.compile_model(branches(), "CPU").close()


@pytest.mark.parametrize("scope", ["HETERO", "CPU"])
def test_option_of_other_device_raises_with_hint(core, scope):
    with pytest.raises(
        errors.UnknownPropertyError, match=r"it is a property of NULL\. Set it there"
    ):
        core.set_property(scope, {"NULL_BUSY": True})


@pytest.mark.parametrize("scope", [(), ("HETERO",), ("CPU",)], ids=["all", "HETERO", "a device"])
@pytest.mark.parametrize(
    ("config", "expected_type"),
    [
        ({"NO_SUCH": 1}, errors.UnknownPropertyError),
        ({"DEVICE_PROPERTIES": {"CPU": {"NUM_STREAMS": 2}}}, errors.PropertyError),
        ({"FULL_DEVICE_NAME": "x"}, errors.ReadOnlyPropertyError),
        ({"PERF_COUNT": "perhaps"}, errors.PropertyError),
        ({"PERF_COUNT": True, "CACHE_DIR": 3}, errors.PropertyError),
        ("LATENCY", errors.ArgumentTypeError),
        ([("PERF_COUNT", True)], errors.ArgumentTypeError),
    ],
    ids=str,
)
def test_set_property_invalid_value_changes_nothing(core, scope, config, expected_type):
    with pytest.raises(expected_type):
        core.set_property(*scope, config)
    assert core.get_property(*scope, "PERF_COUNT") is False
    with core.compile_model(branches(), "ORT") as compiled:
        assert compiled.get_property("PERF_COUNT") is False


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inference_num_threads", "on HETERO or CPU or ORT. Did you mean INFERENCE_NUM_THREADS?"),
        ("PLAN_SECOND", "Did you mean PLAN_SECONDS"),
        ("FROBNICATE", "Expected ADMISSION_TIMEOUT_S, "),
    ],
)
def test_unknown_option_message_has_suggestions(core, name, words):
    with pytest.raises(errors.UnknownPropertyError) as error:
        core.compile_model(branches(), "HETERO:CPU,ORT", {name: 1})
    assert words in str(error.value)
    assert "FULL_DEVICE_NAME" not in str(error.value), "a read-only property"
    assert ("Expected" in str(error.value)) is ("Expected" in words)


@pytest.mark.parametrize("device", ["HETERO:CPU", "HETERO:ORT,CPU"])
def test_properties_of_device_list_raise(core, device):
    for call in (
        lambda: core.get_property(device, "PERF_COUNT"),
        lambda: core.set_property(device, {"PERF_COUNT": True}),
    ):
        with pytest.raises(errors.PropertyError, match=r"is a list; .* one device at a time"):
            call()


def test_unknown_device_raises_for_properties_and_versions(core):
    for call in (
        lambda: core.get_property("TPU", "PERF_COUNT"),
        lambda: core.set_property("TPU", {"PERF_COUNT": True}),
        lambda: core.get_versions("TPU"),
        lambda: core.get_versions("HETERO:CPU,TPU"),
    ):
        with pytest.raises(errors.UnknownDeviceError, match="TPU"):
            call()


def test_get_versions_includes_hetero(core):
    cpu_versions, hetero_versions = core.get_versions("CPU"), core.get_versions("HETERO:CPU")
    assert list(cpu_versions) == ["CPU"]
    assert list(hetero_versions) == ["HETERO", "CPU"]
    assert all(hetero_versions.values())
    assert hetero_versions["CPU"] == cpu_versions["CPU"]


@for_each_row("name", MUTABLE)
def test_hetero_properties_accept_their_defaults(core, name):
    value = core.get_property("HETERO", name)
    default = HETERO_PROPERTIES[name].default
    assert value == (list(default) if isinstance(default, tuple) else default)
    if name != "DEVICE_PROPERTIES":
        core.set_property("HETERO", {name: value})
    assert core.get_property("HETERO", name) == value


def test_compile_model_accepts_every_default(core):
    tables = (HETERO_PROPERTIES, COMMON_PROPERTIES, OPTIONAL_PROPERTIES)
    config = {p.name: p.default for table in tables for p in table.values() if p.mutable}
    with core.compile_model(branches(), "CPU", config) as compiled:
        np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)


# Compiled models.


def test_compiled_model_reports_device_properties(core):
    config = {
        "NUM_STREAMS": 2,
        "DEVICE_PROPERTIES": {"CPU.0": {"INFERENCE_NUM_THREADS": "1"}, "ORT": {"NUM_STREAMS": "3"}},
    }
    with core.compile_model(
        branches(), "HETERO:ORT,CPU,DENSE", config, affinity={"tanh": "CPU"}
    ) as compiled:
        options = compiled.get_property("DEVICE_PROPERTIES")
        assert {d: o["NUM_STREAMS"] for d, o in options.items()} == {"ORT": 3, "CPU": 2, "DENSE": 2}
        assert options["CPU"]["INFERENCE_NUM_THREADS"] == 1
        assert "INFERENCE_NUM_THREADS" not in options["DENSE"]
        assert compiled.get_property("MULTI_DEVICE_PRIORITIES") == ["ORT", "CPU", "DENSE"]
        assert compiled.get_property("CACHE_DIR") == ""
        with pytest.raises(errors.PropertyError, match="ORT has 3, CPU has 2"):
            compiled.get_property("NUM_STREAMS")
    with core.compile_model(branches(), "ORT", {"NUM_STREAMS": 2}) as compiled:
        assert compiled.get_property("NUM_STREAMS") == 2
        imported = core.import_model(compiled.export_model())
        assert imported.get_property("NUM_STREAMS") == 2
        assert imported.get_property("DEVICE_PROPERTIES") == compiled.get_property(
            "DEVICE_PROPERTIES"
        )


def test_compiled_model_properties_are_readable(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"}) as compiled:
        names = compiled.get_property("SUPPORTED_PROPERTIES")
        properties = {name: compiled.get_property(name) for name in names}
    for name, value in properties.items():
        declared_type = HETERO_PROPERTIES[name].type
        public_type = list if declared_type is tuple else declared_type
        assert isinstance(value, dict if name == "SUPPORTED_PROPERTIES" else public_type), name
    assert properties["NETWORK_NAME"] == "branches"
    assert properties["EXECUTION_DEVICES"] == ["ORT", "CPU"]
    assert properties["MULTI_DEVICE_PRIORITIES"] == ["ORT", "CPU"]
    assert set(properties["DEVICE_PROPERTIES"]) == {"ORT", "CPU"}


@pytest.mark.parametrize(
    ("num_requests", "timed_stages"),
    [
        ({"DEVICE_PROPERTIES": {"CPU": {"PERF_COUNT": True}}}, {"subgraph1"}),
        ({"PERF_COUNT": True, "DEVICE_PROPERTIES": {"CPU": {"PERF_COUNT": False}}}, {"subgraph0"}),
        ({"PERF_COUNT": True}, {"subgraph0", "subgraph1"}),
        ({}, set()),
    ],
)
def test_perf_count_per_device(core, num_requests, timed_stages):
    pins = {"matmul": "ORT", "relu": "ORT", "*": "CPU"}
    with core.compile_model(branches(), "HETERO:ORT,CPU", num_requests, affinity=pins) as compiled:
        request = compiled.create_infer_request()
        request.infer(X)
        rows = request.profiling_info if timed_stages else ()
    executed = {row.node_name.partition(":")[0] for row in rows if row.status == "EXECUTED"}
    assert executed & {"subgraph0", "subgraph1"} == timed_stages


# Threads.


def test_core_properties_from_many_threads():
    with hetero.Core(executor="inprocess", plugins=[DensePlugin]) as core:
        model = core.read_model(branches())
        start = threading.Barrier(8)

        def use(worker: int) -> None:
            start.wait(300)
            for iteration in range(6):
                core.set_property({"PERF_COUNT": bool(iteration % 2)})
                core.set_property("CPU", {"NUM_STREAMS": 1 + iteration % 3})
                core.set_property("HETERO", {"PLAN_SEED": worker})
                assert core.get_property("CPU", "NUM_STREAMS") in (1, 2, 3)
                assert len(core.query_model(model, "HETERO:DENSE,CPU")) == 6
                with core.compile_model(model, "HETERO:CPU,ORT") as compiled:
                    np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, range(8)))
