"""Options as a user gives them: to a Core, to HETERO, to a device, to one compilation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices import COMMON_PROPERTIES, OPTIONAL_PROPERTIES, errors
from hetero.devices.plugin.program import Payload
from hetero.examples.third_party_plugin import DensePlugin
from hetero.properties.table import HETERO_PROPERTIES
from tests.scheduler.plugins import TwinPlugin
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output, dense
from tests.support.pair_plugin import PairPlugin

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
MUTABLE = [p.name for p in HETERO_PROPERTIES.values() if p.mutable]


@pytest.fixture
def core() -> Iterator[hetero.Core]:
    plugins = [DensePlugin, PairPlugin, TwinPlugin, CountingPlugin]
    with hetero.Core(executor="inprocess", plugins=plugins) as core:
        yield core


# What is obeyed, and what is refused.


@pytest.mark.parametrize("device", ["CPU", "ORT", "DENSE", "HETERO:ORT,CPU"])
@pytest.mark.parametrize("name", ["NUM_STREAM", "MODEL_PRIORITY"])
def test_what_nobody_obeys_is_refused_by_name(core: hetero.Core, device: str, name: str) -> None:
    for act in (
        lambda: core.compile_model(branches(), device, {name: "f32"}),
        lambda: core.set_property({name: "f32"}),
    ):
        with pytest.raises(errors.UnknownPropertyError, match=f"no property '{name}' on "):
            act()


def test_what_one_device_of_the_list_obeys_is_taken(core: hetero.Core) -> None:
    config = {"LOG_LEVEL": "log_error", "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "latency"}
    model = core.read_model(branches())
    config |= {"MODEL_DISTRIBUTION_POLICY": "PRIORITY"}
    with core.compile_model(model, "HETERO:ORT,CPU", config, affinity={"tanh": "CPU"}) as compiled:
        np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)
        assert compiled.get_property("LOG_LEVEL") == "LOG_ERROR"
        assert compiled.get_property("PERFORMANCE_HINT") == "LATENCY"
        assert "LOG_LEVEL" not in compiled.get_property("DEVICE_PROPERTIES")["CPU"]
    with pytest.raises(errors.UnknownPropertyError, match="LOG_LEVEL"):
        core.compile_model(model, "CPU", {"LOG_LEVEL": "LOG_ERROR"})


def test_the_applications_requests_bound_the_optimal_number(core: hetero.Core) -> None:
    for hint, given, wanted in (("", 0, 2), ("", 1, 1), ("THROUGHPUT", 5, 2), ("LATENCY", 1, 1)):
        config = {"PERFORMANCE_HINT": hint, "PERFORMANCE_HINT_NUM_REQUESTS": given}
        with core.compile_model(branches(), "CPU", config) as compiled:
            assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == wanted
            assert len(hetero.AsyncInferQueue(compiled)) == wanted


class Meeting(DensePlugin):
    """Runs that note how many of them there are at once."""

    name = "MEET"
    running = 0
    most = 0
    gate = threading.Lock()
    #: Called inside of each run.
    inside: Callable[[], object] = staticmethod(lambda: None)

    def compile(self, model: Any, config: Any) -> Any:
        program = super().compile(model, config)
        run = program.run

        def counted(inputs: Any, context: Any) -> Any:
            cls = type(self)
            with cls.gate:
                cls.running += 1
                cls.most = max(cls.most, cls.running)
            try:
                cls.inside()
                return run(inputs, context)
            finally:
                with cls.gate:
                    cls.running -= 1

        program.run = counted
        return program


@pytest.mark.parametrize("exclusive", [True, False])
def test_exclusive_requests_run_one_at_a_time_on_their_device(exclusive: bool) -> None:
    Meeting.most = 0
    together = threading.Barrier(3)
    # Three at once pass it; one at a time waits in vain, and goes on.
    Meeting.inside = staticmethod(lambda: _meet(together, 0.1 if exclusive else 30.0))
    config = {"NUM_STREAMS": 3, "EXCLUSIVE_ASYNC_REQUESTS": exclusive}
    with hetero.Core(executor="inprocess", plugins=[Meeting]) as core:
        models = [core.compile_model(dense(), "MEET", config) for _ in range(2)]
        requests = [m.create_infer_request() for m in (*models, models[0])]
        if not exclusive:
            requests = [models[0].create_infer_request() for _ in range(3)]
        for request in requests:
            request.start_async(np.ones((2, 3), np.float32))
        for request in requests:
            request.wait()
    assert Meeting.most == (1 if exclusive else 3)


def _meet(together: threading.Barrier, timeout_s: float) -> None:
    try:
        together.wait(timeout_s)
    except threading.BrokenBarrierError:
        together.reset()


def test_a_request_that_waits_for_its_turn_can_be_cancelled() -> None:
    entered, leave = threading.Event(), threading.Event()
    Meeting.inside = staticmethod(lambda: (entered.set(), leave.wait(300)))
    config = {"NUM_STREAMS": 2, "EXCLUSIVE_ASYNC_REQUESTS": True}
    with hetero.Core(executor="inprocess", plugins=[Meeting]) as core:
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
def test_weights_of_blobs_and_caches_are_mapped_or_read(
    core: hetero.Core, tmp_path: Path, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[bool] = []
    load = CountingPlugin.load

    def seen(self: Any, payload: Payload, model: Any, config: Any) -> Any:
        mapped.extend(not array.flags.owndata for array in payload.tensors.values())
        return load(self, payload, model, config)

    monkeypatch.setattr(CountingPlugin, "load", seen)
    path, cache = tmp_path / "m.hetero", {"CACHE_DIR": str(tmp_path / "cache")}
    with core.compile_model(branches(), "COUNT", cache) as compiled:
        compiled.export_model(path)
    core.set_property({"ENABLE_MMAP": enabled})
    with core.import_model(path) as imported:
        np.testing.assert_allclose(imported(X)["y"], branches_output(X), rtol=1e-5)
    with core.compile_model(branches(), "COUNT", cache) as found:
        assert found.get_property("LOADED_FROM_CACHE")
    assert mapped
    assert set(mapped) == {enabled}


@pytest.mark.parametrize("scope", [(), ("HETERO",), ("CPU",), ("ORT",), ("DENSE",)], ids=str)
def test_mapping_can_be_turned_off_anywhere(core: hetero.Core, scope: tuple[str, ...]) -> None:
    core.set_property(*scope, {"ENABLE_MMAP": "NO"})
    assert core.get_property(*scope, "ENABLE_MMAP") is False


# Which device.


@pytest.mark.parametrize(
    ("device", "device_id", "wanted"),
    [
        ("TWIN", "1", "TWIN.1"),
        ("TWIN", 0, "TWIN.0"),
        ("TWIN.1", "1", "TWIN.1"),
        ("CPU", "0", "CPU"),
    ],
)
def test_device_id_chooses_the_device(
    core: hetero.Core, device: str, device_id: Any, wanted: str
) -> None:
    with core.compile_model(dense(), device, {"DEVICE_ID": device_id}) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == [wanted]
    assert set(core.query_model(dense(), device, {"DEVICE_ID": device_id}).values()) == {wanted}


@pytest.mark.parametrize("device", ["CPU", "TWIN"])
def test_a_device_id_that_is_not_there_is_refused(core: hetero.Core, device: str) -> None:
    with pytest.raises(errors.UnknownDeviceError, match=f"no device '{device}.7'"):
        core.compile_model(dense(), device, {"DEVICE_ID": "7"})


@pytest.mark.parametrize("device", ["TWIN.0", "HETERO:TWIN,CPU", "HETERO"])
def test_a_device_id_beside_another_id_or_a_list_is_refused(core: hetero.Core, device: str) -> None:
    with pytest.raises(errors.PropertyError, match="Name the devices with their ids"):
        core.compile_model(dense(), device, {"DEVICE_ID": "1"})


@pytest.mark.parametrize("scope", [(), ("HETERO",)], ids=str)
def test_priorities_that_are_set_hold_for_a_bare_hetero(
    core: hetero.Core, scope: tuple[str, ...]
) -> None:
    core.set_property(*scope, {"MULTI_DEVICE_PRIORITIES": "CPU, ORT"})
    with core.compile_model(branches()) as compiled:
        assert compiled.get_property("MULTI_DEVICE_PRIORITIES") == ["CPU", "ORT"]
        assert compiled.get_property("EXECUTION_DEVICES") == ["CPU"]
    with core.compile_model(branches(), "ORT") as compiled:
        assert compiled.get_property("MULTI_DEVICE_PRIORITIES") == ["ORT"]
    with pytest.raises(errors.PropertyError, match="disagree"):
        core.compile_model(branches(), "HETERO:ORT,CPU")


@pytest.mark.parametrize("scope", [(), ("TWIN.1",)], ids=str)
def test_a_device_id_cannot_be_set(core: hetero.Core, scope: tuple[str, ...]) -> None:
    with pytest.raises(errors.ReadOnlyPropertyError, match="DEVICE_ID can be read, not set"):
        core.set_property(*scope, {"DEVICE_ID": "1"})
    with pytest.raises(errors.ReadOnlyPropertyError):
        core.compile_model(dense(), "TWIN", {"DEVICE_PROPERTIES": {"TWIN": {"DEVICE_ID": "1"}}})


def test_devices_of_one_plugin_describe_themselves(core: hetero.Core) -> None:
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


# Set and read.


def test_values_are_read_back_as_what_they_mean(core: hetero.Core) -> None:
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


def test_a_devices_own_option_wins_over_everyones(core: hetero.Core) -> None:
    core.set_property("CPU", {"NUM_STREAMS": 2})
    core.set_property({"NUM_STREAMS": 3})
    assert core.get_property("CPU", "NUM_STREAMS") == 2
    assert core.get_property("ORT", "NUM_STREAMS") == 3
    with core.compile_model(branches(), "HETERO:CPU,ORT") as compiled:
        listed = compiled.get_property("DEVICE_PROPERTIES")
    assert {device: options["NUM_STREAMS"] for device, options in listed.items()} == {
        "CPU": 2,
        "ORT": 3,
    }


@pytest.mark.parametrize("name", ["MAX_VARIANTS", "PERFORMANCE_HINT", "COST_FILE"])
def test_options_of_the_whole_model_are_not_a_devices(core: hetero.Core, name: str) -> None:
    with pytest.raises(errors.UnknownPropertyError, match="Set it for 'HETERO'"):
        core.set_property("CPU", {name: "2"})
    core.compile_model(branches(), "CPU").close()


@pytest.mark.parametrize("scope", ["HETERO", "CPU"])
def test_options_of_other_devices_say_whose_they_are(core: hetero.Core, scope: str) -> None:
    with pytest.raises(errors.UnknownPropertyError, match=r"it is of ORT\b.*\. Set it there"):
        core.set_property(scope, {"LOG_LEVEL": "LOG_ERROR"})


@pytest.mark.parametrize("scope", [(), ("HETERO",), ("CPU",)], ids=["all", "HETERO", "a device"])
@pytest.mark.parametrize(
    ("config", "kind"),
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
def test_what_cannot_be_set_is_refused_at_once_and_changes_nothing(
    core: hetero.Core, scope: tuple[str, ...], config: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        core.set_property(*scope, config)
    assert core.get_property(*scope, "PERF_COUNT") is False
    with core.compile_model(branches(), "ORT") as compiled:
        assert compiled.get_property("PERF_COUNT") is False


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inference_num_threads", "on HETERO or CPU or ORT; did you mean INFERENCE_NUM_THREADS?"),
        ("PLAN_SECOND", "did you mean PLAN_SECONDS"),
        ("FROBNICATE", "There are ADMISSION_TIMEOUT_S, "),
    ],
)
def test_unknown_options_get_a_suggestion_or_else_what_can_be_given(
    core: hetero.Core, name: str, words: str
) -> None:
    with pytest.raises(errors.UnknownPropertyError) as caught:
        core.compile_model(branches(), "HETERO:CPU,ORT", {name: 1})
    assert words in str(caught.value)
    assert "FULL_DEVICE_NAME" not in str(caught.value), "it cannot be given"
    assert ("There are" in str(caught.value)) is ("There are" in words)


@pytest.mark.parametrize("device", ["HETERO:CPU", "HETERO:ORT,CPU"])
def test_lists_have_no_properties(core: hetero.Core, device: str) -> None:
    for act in (
        lambda: core.get_property(device, "PERF_COUNT"),
        lambda: core.set_property(device, {"PERF_COUNT": True}),
    ):
        with pytest.raises(errors.PropertyError, match=r"is a list; .* one device at a time"):
            act()


def test_devices_that_are_not_there_have_no_properties_and_no_versions(core: hetero.Core) -> None:
    for act in (
        lambda: core.get_property("TPU", "PERF_COUNT"),
        lambda: core.set_property("TPU", {"PERF_COUNT": True}),
        lambda: core.get_versions("TPU"),
        lambda: core.get_versions("HETERO:CPU,TPU"),
    ):
        with pytest.raises(errors.UnknownDeviceError, match="TPU"):
            act()


def test_versions_name_hetero_where_it_is_asked_for(core: hetero.Core) -> None:
    alone, split = core.get_versions("CPU"), core.get_versions("HETERO:CPU")
    assert list(alone) == ["CPU"]
    assert list(split) == ["HETERO", "CPU"]
    assert all(split.values())
    assert split["CPU"] == alone["CPU"]


@pytest.mark.parametrize("name", MUTABLE)
def test_heteros_properties_can_be_read_and_take_their_default(
    core: hetero.Core, name: str
) -> None:
    value = core.get_property("HETERO", name)
    default = HETERO_PROPERTIES[name].default
    assert value == (list(default) if isinstance(default, tuple) else default)
    if name != "DEVICE_PROPERTIES":
        core.set_property("HETERO", {name: value})
    assert core.get_property("HETERO", name) == value


def test_a_model_compiles_with_every_default_given(core: hetero.Core) -> None:
    tables = (HETERO_PROPERTIES, COMMON_PROPERTIES, OPTIONAL_PROPERTIES)
    config = {p.name: p.default for table in tables for p in table.values() if p.mutable}
    with core.compile_model(branches(), "CPU", config) as compiled:
        np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)


# Compiled models.


def test_a_compiled_model_tells_what_its_devices_were_given(core: hetero.Core) -> None:
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
        again = core.import_model(compiled.export_model())
        assert again.get_property("NUM_STREAMS") == 2
        assert again.get_property("DEVICE_PROPERTIES") == compiled.get_property("DEVICE_PROPERTIES")


def test_every_property_of_a_compiled_model_can_be_read(core: hetero.Core) -> None:
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"}) as compiled:
        found = {n: compiled.get_property(n) for n in compiled.get_property("SUPPORTED_PROPERTIES")}
    for name, value in found.items():
        kind = HETERO_PROPERTIES[name].type
        kind = {"SUPPORTED_PROPERTIES": dict}.get(name, list if kind is tuple else kind)
        assert isinstance(value, kind), name
    assert found["NETWORK_NAME"] == "branches"
    assert found["EXECUTION_DEVICES"] == ["ORT", "CPU"]
    assert found["MULTI_DEVICE_PRIORITIES"] == ["ORT", "CPU"]
    assert set(found["DEVICE_PROPERTIES"]) == {"ORT", "CPU"}


@pytest.mark.parametrize(
    ("given", "timed"),
    [
        ({"DEVICE_PROPERTIES": {"CPU": {"PERF_COUNT": True}}}, {"subgraph1"}),
        ({"PERF_COUNT": True, "DEVICE_PROPERTIES": {"CPU": {"PERF_COUNT": False}}}, {"subgraph0"}),
        ({"PERF_COUNT": True}, {"subgraph0", "subgraph1"}),
        ({}, set()),
    ],
)
def test_each_device_is_timed_where_it_was_told_to(
    core: hetero.Core, given: dict[str, Any], timed: set[str]
) -> None:
    pins = {"matmul": "ORT", "relu": "ORT", "*": "CPU"}
    with core.compile_model(branches(), "HETERO:ORT,CPU", given, affinity=pins) as compiled:
        request = compiled.create_infer_request()
        request.infer(X)
        rows = request.profiling_info if timed else ()
    executed = {row.node_name.partition(":")[0] for row in rows if row.status == "EXECUTED"}
    assert executed & {"subgraph0", "subgraph1"} == timed


# Threads.


def test_one_core_from_many_threads() -> None:
    with hetero.Core(executor="inprocess", plugins=[DensePlugin]) as core:
        model = core.read_model(branches())
        start = threading.Barrier(8)

        def use(worker: int) -> None:
            start.wait(300)
            for turn in range(6):
                core.set_property({"PERF_COUNT": bool(turn % 2)})
                core.set_property("CPU", {"NUM_STREAMS": 1 + turn % 3})
                core.set_property("HETERO", {"PLAN_SEED": worker})
                assert core.get_property("CPU", "NUM_STREAMS") in (1, 2, 3)
                assert len(core.query_model(model, "HETERO:DENSE,CPU")) == 6
                with core.compile_model(model, "HETERO:CPU,ORT") as compiled:
                    np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, range(8)))
