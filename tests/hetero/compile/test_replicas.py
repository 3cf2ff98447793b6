"""Several plans that share requests: compiled, kept in the cache, exported, imported; and one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.cache.blob import describe_blob
from hetero.compile import compiler
from hetero.devices.errors import BlobError, PropertyError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.planning import plan_task
from hetero.planning.cost_planner import CostPlanner
from hetero.scheduler.formats.blob_file import BlobFile
from tests.support.models import branches, branches_output
from tests.support.plans import replica_config

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
DEVICES = "HETERO:CPU,ORT"


def check(model: Any) -> None:
    """Both devices answer, and rightly."""
    ran = set()
    for _ in range(4):
        answer = model.submit({"x": X}).future.result()
        np.testing.assert_allclose(answer.outputs["y"], branches_output(X), rtol=1e-6)
        ran |= {(run.stage, run.device) for run in answer.stage_timings}
    assert ran == {(s.index, s.device) for s in model.subgraphs}
    assert len(ran) == 2


def test_several_plans_come_back_from_a_blob(core: hetero.Core, tmp_path: Path) -> None:
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
        with core.import_model(source) as again:
            assert again.shares == pytest.approx((2 / 3, 1 / 3))
            assert set(again.deployment.imported) == {0, 1}
            check(again)
            assert again.export_model() == blob
    with core.import_model(blob, remap={"ORT": "CPU"}) as moved:
        assert {s.device for s in moved.subgraphs} == {"CPU"}
    with core.import_model(blob, "CPU") as alone:
        assert len(alone.placements) == 1
        np.testing.assert_allclose(alone({"x": X})[0], branches_output(X), rtol=1e-6)


def test_a_later_layout_is_refused_by_name(
    core: hetero.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3})
    monkeypatch.setattr("hetero.cache.blob.SEVERAL_PLANS", 3)
    with core.compile_model(branches(), DEVICES, config) as compiled:
        blob = compiled.export_model()
    monkeypatch.undo()
    with pytest.raises(BlobError, match="layout 3"):
        core.import_model(blob)


def test_one_best_plan_is_a_plain_model_that_exports(core: hetero.Core, tmp_path: Path) -> None:
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e3})
    with core.compile_model(branches(), DEVICES, config) as compiled:
        assert len(compiled.placements) == 1
        blob = compiled.export_model()
    with core.import_model(blob) as again:
        np.testing.assert_allclose(again({"x": X})[0], branches_output(X), rtol=1e-6)


def test_several_plans_are_kept_and_the_cache_comes_first(
    core: hetero.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3}, CACHE_DIR=str(folder))
    with core.compile_model(branches(), DEVICES, config) as compiled:
        assert not compiled.get_property("LOADED_FROM_CACHE")
    assert len(list(folder.glob("*.stage"))) == 2

    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("planned though the plan is in the cache")

    monkeypatch.setattr(CostPlanner, "plan", never)
    with core.compile_model(branches(), DEVICES, config) as compiled:
        assert compiled.get_property("LOADED_FROM_CACHE")
        assert len(compiled.placements) == 2
        check(compiled)


@pytest.fixture
def questions(core: hetero.Core, monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, Any]]:
    """What is asked of devices, and what is cut."""
    asked: Counter[tuple[str, Any]] = Counter()
    executor = core.executor
    query, get_property, cut = executor.query, executor.get_property, compiler.partition

    def counted_query(device: str, model: Model, config: Any = None) -> Any:
        asked["query", device] += 1
        return query(device, model, config)

    def counted_property(device: str, name: str) -> Any:
        asked["property", device] += 1
        return get_property(device, name)

    def counted_cut(model: Model, affinity: Any) -> Any:
        asked["cut", tuple(sorted(affinity.items()))] += 1
        return cut(model, affinity)

    monkeypatch.setattr(executor, "query", counted_query)
    monkeypatch.setattr(executor, "get_property", counted_property)
    for module in (compiler, plan_task):
        monkeypatch.setattr(module, "partition", counted_cut)
    return asked


def test_replicas_share_requests_each_on_devices_of_its_own(
    core: hetero.Core, tmp_path: Path
) -> None:
    config = {"NUM_REPLICAS": 2, "CACHE_DIR": str(tmp_path / "cache")}
    with core.compile_model(branches(), "HETERO:CPU,ORT,NULL", config) as compiled:
        first, second = compiled.placements
        assert (set(first.affinity.values()), set(second.affinity.values())) == ({"CPU"}, {"ORT"})
        assert compiled.shares == (0.5, 0.5)
        levels = [max(cut.plan.levels) + 1 for cut in compiled.placements]
        assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == sum(levels) + 2
    for hit in (False, True):
        with core.compile_model(branches(), DEVICES, config) as compiled:
            assert compiled.get_property("LOADED_FROM_CACHE") is hit
            check(compiled)
            blob = compiled.export_model()
    with core.import_model(blob) as again:
        check(again)
    with pytest.raises(PropertyError, match="NUM_REPLICAS=3 wants a device for each"):
        core.compile_model(branches(), DEVICES, {"NUM_REPLICAS": 3})


def test_a_devices_stages_are_on_its_stand_ins_too_and_the_others_on_one(tmp_path: Path) -> None:
    config = {
        "STAGE_REPLICAS": {"CPU.1": ["CPU.2", "CPU.3"]},
        "CACHE_DIR": str(tmp_path / "cache"),
    }
    names, pins = "HETERO:CPU.0,CPU.1,CPU.2,CPU.3", {"tanh": "CPU.1"}
    with hetero.Core(executor="inprocess", devices={"CPU": 4}) as core:
        for hit in (False, True):
            with core.compile_model(branches(), names, config, affinity=pins) as compiled:
                assert compiled.get_property("LOADED_FROM_CACHE") is hit
                turns = taken(compiled, 9)
                blob = compiled.export_model()
            others, tanh = ("CPU.0", "CPU.0"), ("CPU.1", "CPU.2", "CPU.3")
            assert turns == {tuple(sorted((*others, device))): 3 for device in tanh}
        with core.import_model(blob) as again:
            assert taken(again, 9) == turns
            assert len(again.subgraphs) == 5
            assert len(again.get_runtime_model().nodes) == len(again.executed_nodes())


def taken(compiled: hetero.CompiledModel, count: int) -> Counter[tuple[str, ...]]:
    """Return how often each set of devices gave a right answer."""
    found: Counter[tuple[str, ...]] = Counter()
    listed = {(s.index, s.device) for s in compiled.subgraphs}
    for _ in range(count):
        answer = compiled.submit({"x": X}).future.result(60)
        np.testing.assert_allclose(answer.outputs["y"], branches_output(X), rtol=1e-6)
        assert {(run.stage, run.device) for run in answer.stage_timings} <= listed
        found[tuple(sorted(run.device for run in answer.stage_timings))] += 1
    return found


def test_queries_and_plans_give_stand_ins_nothing_either(core: hetero.Core, tmp_path: Path) -> None:
    stand_ins = {"STAGE_REPLICAS": {"CPU": ["ORT"]}}
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-6}) | stand_ins
    report = core.plan_model(branches(), DEVICES, config)
    assert {d for variant in report.variants for d in variant.affinity.values()} == {"CPU"}
    assert set(core.query_model(branches(), "HETERO:ORT,CPU", stand_ins).values()) == {"CPU"}
    assert set(core.survey_model(branches(), "HETERO:ORT,CPU", stand_ins).results) == {"CPU"}


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        ({"CPU": ["NULL"]}, "nodes are pinned to it: .'tanh'"),
        ({"CPU": ["GPU.7"]}, "'GPU.7' is not one of the model's devices: CPU, ORT, NULL"),
        ({"CPU": ["ORT"], "NULL": ["ORT"]}, "ORT is there more than once"),
        ({"CPU": "ORT"}, "expected a list of devices"),
    ],
)
def test_stand_ins_that_make_no_sense_are_refused(
    core: hetero.Core, replicas: dict[str, Any], words: str
) -> None:
    config = {"STAGE_REPLICAS": replicas}
    with pytest.raises(PropertyError, match=words):
        core.compile_model(branches(), "HETERO:CPU,ORT,NULL", config, affinity={"tanh": "NULL"})


@pytest.mark.parametrize("variants", [1, 4])
def test_a_device_is_asked_once_and_an_affinity_cut_once(
    core: hetero.Core, tmp_path: Path, questions: Counter[tuple[str, Any]], variants: int
) -> None:
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3}, MAX_VARIANTS=variants)
    with core.compile_model(branches(), DEVICES, config):
        pass
    assert questions["query", "CPU"] == questions["query", "ORT"] == 1
    cuts = {what: count for what, count in questions.items() if what[0] == "cut"}
    assert cuts
    assert set(cuts.values()) == {1}


@pytest.mark.parametrize(
    ("by_cost", "pins", "devices"),
    [(False, {"tanh": "ORT"}, {"ORT"}), (True, {}, {"CPU", "ORT"})],
    ids=["by priority", "by cost"],
)
def test_devices_that_are_sure_to_be_asked_start_before_any_is(
    core: hetero.Core,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_cost: bool,
    pins: dict[str, str],
    devices: set[str],
) -> None:
    happened: list[Any] = []
    query = core.executor.query
    monkeypatch.setattr(core.executor, "start", lambda names: happened.append(set(names)))
    monkeypatch.setattr(core.executor, "query", lambda *q: happened.append("asked") or query(*q))
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3}) if by_cost else {}
    with core.compile_model(branches(), DEVICES, config, affinity=pins):
        assert happened[:2] == [devices, "asked"]


def test_a_model_that_was_asked_about_is_not_asked_about_again(
    core: hetero.Core, tmp_path: Path, questions: Counter[tuple[str, Any]]
) -> None:
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3})
    model = core.read_model(branches())
    core.survey_model(model, DEVICES, config)
    core.plan_model(model, DEVICES, config)
    with core.compile_model(model, DEVICES, config):
        pass
    assert questions["query", "CPU"] == questions["query", "ORT"] == 1


@pytest.mark.parametrize("policy", ["AUTO", "PRIORITY"])
def test_a_hit_asks_no_device_and_starts_those_it_needs(tmp_path: Path, policy: str) -> None:
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
        asked: list[str] = []
        for name in ("query", "get_property"):
            setattr(executor, name, lambda *a, name=name, **k: asked.append(name))
        started: list[str] = []
        start = executor._device

        def watched(name: str) -> Any:
            started.append(name)
            return start(name)

        executor._device = watched
        with core.compile_model(branches(), DEVICES, config) as compiled:
            assert compiled.get_property("LOADED_FROM_CACHE")
            np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)
        assert asked == []
        assert set(started) == {"CPU"}


def test_devices_of_a_node_are_not_planned_more_memory_than_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = read_model(branches()).constants["w"].array.nbytes
    monkeypatch.setattr("hetero.scheduler.device.probe._node_memory_nbytes", lambda: 2 * weight - 1)
    with hetero.Core(executor="inprocess") as core:
        config = replica_config(
            core, tmp_path, {"CPU": 1e-3, "ORT": 1e-3}, PERFORMANCE_HINT="THROUGHPUT"
        )
        with pytest.raises(hetero.errors.PlanError) as caught:
            core.plan_model(branches(), DEVICES, config)
        assert caught.value.constraint == "memory"
        # Two whole replicas need twice the weights: there is room for one, on the device named.
        room = {"DEVICE_MEMORY_NBYTES": {"CPU": weight}}
        report = core.plan_model(branches(), DEVICES, config | room)
    assert {v.affinity["matmul"] for v in report.variants} == {"CPU"}


def test_each_replica_keeps_the_pins_on_a_device_of_its_own(core: hetero.Core) -> None:
    config = {"NUM_REPLICAS": 2}
    with pytest.raises(
        PropertyError, match=r"NUM_REPLICAS=2: .* ORT contains no other device of plugin CPU"
    ):
        core.compile_model(branches(), "HETERO:ORT,CPU", config, affinity={"tanh": "CPU"})
    devices = "HETERO:ORT.0,ORT.1,CPU.0,CPU.1"
    with (
        hetero.Core(executor="inprocess", devices={"ORT": 2, "CPU": 2}) as twins,
        twins.compile_model(branches(), devices, config, affinity={"tanh": "CPU.0"}) as compiled,
    ):
        assert [cut.affinity["tanh"] for cut in compiled.placements] == ["CPU.0", "CPU.1"]
        assert {d for cut in compiled.placements for d in cut.affinity.values()} == {
            "ORT.0",
            "ORT.1",
            "CPU.0",
            "CPU.1",
        }
        check_each(compiled)


def check_each(model: Any) -> None:
    """Each copy answers, and rightly."""
    ran = set()
    for _ in range(4):
        answer = model.submit({"x": X}).future.result()
        np.testing.assert_allclose(answer.outputs["y"], branches_output(X), rtol=1e-6)
        ran |= {run.device for run in answer.stage_timings}
    assert len(ran) == 4
