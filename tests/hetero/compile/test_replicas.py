"""Models with several plans: replicas, cache, export, import, stage replicas, queries."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.cache.blob import describe_blob
from hetero.compile import compiler
from hetero.devices.errors import BlobError, PropertyError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.support import Refusal, Support
from hetero.planning import plan_task
from hetero.planning.cost_planner import CostPlanner
from hetero.scheduler.formats.blob_file import BlobFile
from tests.support.models import branches, branches_output
from tests.support.plans import replica_config
from tests.support.slow_replica import share_of_slow_replica

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
DEVICES = "HETERO:CPU,ORT"


def check_results(model: Any) -> None:
    """Check that both devices run requests, and their results."""
    stage_runs = set()
    for _ in range(4):
        response = model.submit({"x": X}).future.result()
        np.testing.assert_allclose(response.outputs["y"], branches_output(X), rtol=1e-6)
        stage_runs |= {(timing.stage, timing.device) for timing in response.stage_timings}
    assert stage_runs == {(s.index, s.device) for s in model.subgraphs}
    assert len(stage_runs) == 2


def test_export_and_import_of_several_plans(core, tmp_path):
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 2e-3})
    path = tmp_path / "m.hetero"
    with core.compile_model(branches(), DEVICES, config) as compiled:
        assert len(compiled.placements) == 2
        compiled.export_model(path)
        blob = compiled.export_model()
    document = describe_blob(BlobFile(path))
    assert document["shares"] == pytest.approx([2 / 3, 1 / 3])
    assert [(s["index"], s["device"]) for s in document["stages"]] == [(0, "CPU"), (1, "ORT")]
    for source in (path, blob):
        with core.import_model(source) as imported:
            assert imported.shares == pytest.approx((2 / 3, 1 / 3))
            assert set(imported.deployment.imported) == {0, 1}
            check_results(imported)
            assert imported.export_model() == blob
    with core.import_model(blob, remap={"ORT": "CPU"}) as remapped:
        assert {s.device for s in remapped.subgraphs} == {"CPU"}
    with core.import_model(blob, "CPU") as imported_on_cpu:
        assert len(imported_on_cpu.placements) == 1
        np.testing.assert_allclose(imported_on_cpu({"x": X})[0], branches_output(X), rtol=1e-6)


def test_import_of_unknown_layout_is_rejected(core, tmp_path, monkeypatch):
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3})
    monkeypatch.setattr("hetero.cache.blob.MULTI_PLAN_LAYOUT", 3)
    with core.compile_model(branches(), DEVICES, config) as compiled:
        blob = compiled.export_model()
    monkeypatch.undo()
    with pytest.raises(BlobError, match="layout 3"):
        core.import_model(blob)


def test_single_plan_is_exported_without_shares(core, tmp_path):
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e3})
    with core.compile_model(branches(), DEVICES, config) as compiled:
        assert len(compiled.placements) == 1
        blob = compiled.export_model()
    with core.import_model(blob) as imported:
        np.testing.assert_allclose(imported({"x": X})[0], branches_output(X), rtol=1e-6)


def test_cached_plans_are_used_before_planning(core, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3}, CACHE_DIR=str(folder))
    with core.compile_model(branches(), DEVICES, config) as compiled:
        assert not compiled.get_property("LOADED_FROM_CACHE")
    assert len(list(folder.glob("*.stage"))) == 2

    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("the cached plan was not used")

    monkeypatch.setattr(CostPlanner, "plan", fail)
    with core.compile_model(branches(), DEVICES, config) as compiled:
        assert compiled.get_property("LOADED_FROM_CACHE")
        assert len(compiled.placements) == 2
        check_results(compiled)


def test_slow_replica_runs_fewer_requests():
    with hetero.Core(executor="inprocess", devices={"NULL": 2}) as core:
        assert share_of_slow_replica(core) < 0.3  # with equal turns: 0.5


@pytest.fixture
def call_counts(core, monkeypatch):
    """Count the queries of devices and properties, and the partitions by affinity."""
    counts: Counter[tuple[str, Any]] = Counter()
    executor = core.executor
    query, get_property, partition = executor.query, executor.get_property, compiler.partition

    def counted_query(device: str, model: Model, config: Any = None) -> Any:
        counts["query", device] += 1
        return query(device, model, config)

    def counted_property(device: str, name: str) -> Any:
        counts["property", device] += 1
        return get_property(device, name)

    def counted_partition(model: Model, affinity: Any) -> Any:
        counts["partition", tuple(sorted(affinity.items()))] += 1
        return partition(model, affinity)

    monkeypatch.setattr(executor, "query", counted_query)
    monkeypatch.setattr(executor, "get_property", counted_property)
    for module in (compiler, plan_task):
        monkeypatch.setattr(module, "partition", counted_partition)
    return counts


def test_replicas_use_separate_devices_and_share_requests(core, tmp_path):
    config = {"REPLICAS": 2, "CACHE_DIR": str(tmp_path / "cache")}
    with core.compile_model(branches(), "HETERO:CPU,ORT,NULL", config) as compiled:
        first, second = compiled.placements
        assert (set(first.affinity.values()), set(second.affinity.values())) == ({"CPU"}, {"ORT"})
        assert compiled.shares == (0.5, 0.5)
        levels = [max(placement.plan.levels) + 1 for placement in compiled.placements]
        assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == sum(levels) + 2
    for hit in (False, True):
        with core.compile_model(branches(), DEVICES, config) as compiled:
            assert compiled.get_property("LOADED_FROM_CACHE") is hit
            check_results(compiled)
            blob = compiled.export_model()
    with core.import_model(blob) as imported:
        check_results(imported)
    with pytest.raises(
        PropertyError, match=r"at most 2, one replica for each device of CPU, ORT; got 3\. List"
    ):
        core.compile_model(branches(), DEVICES, {"REPLICAS": 3})


def test_stage_replicas_run_stages_by_turns(tmp_path):
    config = {
        "REPLICAS": {"CPU.1": ["CPU.2", "CPU.3"]},
        "CACHE_DIR": str(tmp_path / "cache"),
    }
    names, pins = "HETERO:CPU.0,CPU.1,CPU.2,CPU.3", {"tanh": "CPU.1"}
    with hetero.Core(executor="inprocess", devices={"CPU": 4}) as core:
        for hit in (False, True):
            with core.compile_model(branches(), names, config, affinity=pins) as compiled:
                assert compiled.get_property("LOADED_FROM_CACHE") is hit
                device_counts = count_devices(compiled, 9)
                blob = compiled.export_model()
            others, tanh = ("CPU.0", "CPU.0"), ("CPU.1", "CPU.2", "CPU.3")
            assert device_counts == {tuple(sorted((*others, device))): 3 for device in tanh}
        with core.import_model(blob) as imported:
            assert count_devices(imported, 9) == device_counts
            assert len(imported.subgraphs) == 5
            assert len(imported.get_runtime_model().nodes) == len(imported.executed_nodes())


def count_devices(compiled: hetero.CompiledModel, count: int) -> Counter[tuple[str, ...]]:
    """Run requests, check their results, and count the sets of devices that ran them."""
    device_counts: Counter[tuple[str, ...]] = Counter()
    subgraphs = {(s.index, s.device) for s in compiled.subgraphs}
    for _ in range(count):
        response = compiled.submit({"x": X}).future.result(60)
        np.testing.assert_allclose(response.outputs["y"], branches_output(X), rtol=1e-6)
        assert {(t.stage, t.device) for t in response.stage_timings} <= subgraphs
        device_counts[tuple(sorted(t.device for t in response.stage_timings))] += 1
    return device_counts


def test_plans_assign_no_nodes_to_replica_devices(core, tmp_path):
    stage_replicas = {"REPLICAS": {"CPU": ["ORT"]}}
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-6}) | stage_replicas
    report = core.plan_model(branches(), DEVICES, config)
    # The faster device gets more requests, and both run the same plan.
    assert [set(r.affinity.values()) for r in report.replicas] == [{"ORT"}, {"CPU"}]
    assert report.replicas[0].share > 0.9
    assert report.loads_s["CPU"] == pytest.approx(report.loads_s["ORT"])
    assert set(core.query_model(branches(), "HETERO:ORT,CPU", stage_replicas).values()) == {"CPU"}
    assert set(core.survey_model(branches(), "HETERO:ORT,CPU", stage_replicas).results) == {"CPU"}


@pytest.mark.parametrize(
    ("replicas", "pattern"),
    [
        ({"CPU": ["NULL"]}, "nodes are pinned to it: .'tanh'"),
        ({"CPU": ["GPU.7"]}, "expected one of the model's devices CPU, ORT, NULL; got 'GPU.7'"),
        ({"CPU": ["ORT"], "NULL": ["ORT"]}, "ORT occurs twice"),
        ({"CPU": "ORT"}, "expected a list of devices"),
    ],
)
def test_invalid_stage_replicas_are_rejected(core, replicas, pattern):
    config = {"REPLICAS": replicas}
    with pytest.raises(PropertyError, match=pattern):
        core.compile_model(branches(), "HETERO:CPU,ORT,NULL", config, affinity={"tanh": "NULL"})


@pytest.mark.parametrize("replicas", [1, "plan"])
def test_compile_queries_and_partitions_once(core, tmp_path, call_counts, replicas):
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3}, REPLICAS=replicas)
    with core.compile_model(branches(), DEVICES, config):
        pass
    assert call_counts["query", "CPU"] == call_counts["query", "ORT"] == 1
    partitions = {key: count for key, count in call_counts.items() if key[0] == "partition"}
    assert partitions
    assert set(partitions.values()) == {1}


@pytest.mark.parametrize(
    ("by_cost", "pins", "devices"),
    [(False, {"tanh": "ORT"}, {"ORT"}), (True, {}, {"CPU", "ORT"})],
    ids=["by priority", "by cost"],
)
def test_devices_start_before_the_first_query(
    core,
    tmp_path,
    monkeypatch,
    by_cost,
    pins,
    devices,
):
    events: list[Any] = []
    query = core.executor.query
    monkeypatch.setattr(core.executor, "start", lambda names: events.append(set(names)))
    monkeypatch.setattr(core.executor, "query", lambda *q: events.append("query") or query(*q))
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3}) if by_cost else {}
    with core.compile_model(branches(), DEVICES, config, affinity=pins):
        assert events[:2] == [devices, "query"]


def test_queries_are_reused_by_compile(core, tmp_path, call_counts):
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3})
    model = core.read_model(branches())
    core.survey_model(model, DEVICES, config)
    core.plan_model(model, DEVICES, config)
    with core.compile_model(model, DEVICES, config):
        pass
    assert call_counts["query", "CPU"] == call_counts["query", "ORT"] == 1


@pytest.mark.parametrize("policy", ["AUTO", "PRIORITY"])
def test_cache_hit_queries_no_device(tmp_path, policy):
    with hetero.Core(executor="inprocess") as first:
        config = replica_config(
            first,
            tmp_path,
            {"CPU": 1e-3, "ORT": 1e3},
            MODEL_DISTRIBUTION_POLICY=policy,
            CACHE_DIR=str(tmp_path / "cache"),
        )
        first.compile_model(branches(), DEVICES, config).close()
    with hetero.Core(executor="inprocess") as core:
        executor: Any = core.executor
        calls: list[str] = []
        for name in ("query", "get_property"):
            setattr(executor, name, lambda *a, name=name, **k: calls.append(name))
        devices: list[str] = []
        get_device = executor._device

        def device_with_log(name: str) -> Any:
            devices.append(name)
            return get_device(name)

        executor._device = device_with_log
        with core.compile_model(branches(), DEVICES, config) as compiled:
            assert compiled.get_property("LOADED_FROM_CACHE")
            np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)
        assert calls == []
        assert set(devices) == {"CPU"}


def test_plan_respects_the_memory_of_the_node(tmp_path, monkeypatch):
    weight = read_model(branches()).constants["w"].array.nbytes
    monkeypatch.setattr(
        "hetero.scheduler.device.discovery._node_memory_nbytes", lambda: 2 * weight - 1
    )
    with hetero.Core(executor="inprocess") as core:
        config = replica_config(
            core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3}, PERFORMANCE_HINT="THROUGHPUT"
        )
        with pytest.raises(hetero.errors.PlanError) as error:
            core.plan_model(branches(), DEVICES, config)
        assert error.value.constraint == "memory"
        # Two replicas need twice the weights, but the memory suffices for one.
        memory_limits = {"DEVICE_MEMORY_NBYTES": {"CPU": weight}}
        report = core.plan_model(branches(), DEVICES, config | memory_limits)
    assert {v.affinity["matmul"] for v in report.replicas} == {"CPU"}


@pytest.mark.parametrize("value", ["many", "1-4", "", 1.5, None, [2]])
def test_ill_typed_replicas_raise_with_the_alternatives(core, value):
    with pytest.raises(PropertyError, match=r"expected a number, a range such as 1\.\.4, auto"):
        core.compile_model(branches(), "CPU", {"REPLICAS": value})


def test_replicas_of_pinned_devices(core):
    config = {"REPLICAS": 2}
    message = "CPU is a replica of ORT, but nodes are pinned to it.* list N devices of each kind"
    with pytest.raises(PropertyError, match=message):
        core.compile_model(branches(), "HETERO:ORT,CPU", config, affinity={"tanh": "CPU"})
    devices = "HETERO:ORT.0,ORT.1,CPU.0,CPU.1"
    with hetero.Core(executor="inprocess", devices={"ORT": 2, "CPU": 2}) as multi_device_core:
        # A pin to a replica is a pin to the device that it replicates.
        for pin in ("CPU.0", "CPU.1"):
            with multi_device_core.compile_model(
                branches(), devices, config, affinity={"tanh": pin}
            ) as compiled:
                affinities = [placement.affinity for placement in compiled.placements]
                assert [set(a.values()) for a in affinities] == [
                    {"ORT.0", "CPU.0"},
                    {"ORT.1", "CPU.1"},
                ]
                assert [affinity["tanh"] for affinity in affinities] == ["CPU.0", "CPU.1"]
                check_all_devices(compiled)


def test_last_devices_may_have_fewer_replicas():
    devices = {"ORT": 2, "CPU": 1}
    with (
        hetero.Core(executor="inprocess", devices=devices) as core,
        core.compile_model(
            branches(),
            "HETERO:ORT.0,ORT.1,CPU",
            {"REPLICAS": 2},
            affinity={"tanh": "CPU"},
        ) as compiled,
    ):
        used = [set(p.affinity.values()) for p in compiled.placements]
        assert used == [{"ORT.0", "CPU"}, {"ORT.1", "CPU"}]
        assert count_devices(compiled, 4).total() == 4


def test_nodes_that_a_replica_refuses_go_elsewhere():
    devices = {"ORT": 2, "CPU": 1}
    with hetero.Core(executor="inprocess", devices=devices) as core:
        query = core.executor.query

        def query_without_tanh(device: str, model: Model, config: Any = None) -> Any:
            support = query(device, model, config)
            if device != "ORT.1":
                return support
            refusal = {"tanh": {device: Refusal("no_kernel", "for this test")}}
            supported = {n: d for n, d in support.devices.items() if n != "tanh"}
            return Support(supported, refusal, refusal)

        core.executor.query = query_without_tanh  # type: ignore[method-assign]
        support = core.query_model(branches(), "HETERO:ORT.0,ORT.1,CPU", {"REPLICAS": 2})
        assert support["tanh"] == "CPU"
        assert "for this test" in str(support.refusals["tanh"]["ORT.0"])
        assert set(support.values()) == {"ORT.0", "CPU"}


@pytest.mark.parametrize(
    ("name", "value", "replicas"),
    [
        ("NUM_REPLICAS", 2, 2),
        ("STAGE_REPLICAS", {"CPU": ["ORT"]}, {"CPU": ["ORT"]}),
        ("MAX_VARIANTS", 4, "plan"),
        ("MAX_VARIANTS", "1", 1),
    ],
)
def test_replaced_properties_set_replicas(core, name, value, replicas):
    message = f"'{name}' is deprecated; use 'REPLICAS'"
    with pytest.warns(DeprecationWarning, match=message):
        compiled = core.compile_model(branches(), DEVICES, {name: value})
    with compiled:
        assert compiled.get_property("REPLICAS") == replicas
        with pytest.warns(DeprecationWarning, match=message):
            old_value = compiled.get_property(name)
        assert old_value == (1 if name == "MAX_VARIANTS" else value)
    with pytest.warns(DeprecationWarning, match=message):
        core.set_property("HETERO", {name: value})
    assert core.get_property("HETERO", "REPLICAS") == replicas


def test_conflicting_replica_properties_are_rejected(core):
    config = {"NUM_REPLICAS": 2, "REPLICAS": 3}
    with (
        pytest.warns(DeprecationWarning, match="NUM_REPLICAS"),
        pytest.raises(PropertyError, match="NUM_REPLICAS and REPLICAS set the same property"),
    ):
        core.compile_model(branches(), DEVICES, config)


def check_all_devices(model: Any) -> None:
    """Check that all four devices run requests, and their results."""
    devices = set()
    for _ in range(4):
        response = model.submit({"x": X}).future.result()
        np.testing.assert_allclose(response.outputs["y"], branches_output(X), rtol=1e-6)
        devices |= {timing.device for timing in response.stage_timings}
    assert len(devices) == 4
