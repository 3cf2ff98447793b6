"""Cache keys: each field changes the key alone, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero.affinity.affinity import Affinity
from hetero.cache import key as key_module
from hetero.cache.key import plan_key, stage_key, verdicts_key
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import HETERO_PROPERTIES
from tests.support.compile_requests import compile_request, descriptor
from tests.support.models import branches


def changed(change: Callable[[onnx.ModelProto], None]) -> Model:
    proto = branches()
    change(proto)
    return read_model(proto)


def declare_type(proto: onnx.ModelProto, position: int = 0, *sizes: int) -> None:
    name = proto.graph.node[position].output[0]
    proto.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))


def change_weight(proto: onnx.ModelProto) -> None:
    weight = numpy_helper.to_array(proto.graph.initializer[0])
    new = numpy_helper.from_array(np.nextafter(weight, np.float32(9)), "w")
    proto.graph.initializer[0].CopyFrom(new)


MODEL = read_model(branches())
DEVICES = ("X.0", "X.1")
REQUEST = compile_request(*DEVICES)
#: Option -> a value that differs from the default; each changes the plan.
PLAN_OPTIONS = {
    "MODEL_DISTRIBUTION_POLICY": "AUTO",
    "PERFORMANCE_HINT": "LATENCY",
    "PLAN_SECONDS": 6.0,
    "PLAN_SHAPES": {"x": [2, 3]},
    "PLAN_SEED": 1,
    "MAX_SUBGRAPHS": 2,
    "REPLICAS": 2,
    "VERIFY": "STRICT",
    "VERIFY_SECONDS": 3.0,
    "COLOCATION": {"group": ["matmul"]},
    "DEVICE_MEMORY_NBYTES": {"X.0": 5},
    "FIT_MEMORY": True,
}
#: Options that concern requests, the cache or the way to the costs.
OTHER_OPTIONS = {
    "MAX_REQUESTS_IN_FLIGHT": 5,
    "REQUEST_TIMEOUT_S": 7.0,
    "AUTO_BATCH_TIMEOUT": 3,
    "CACHE_DIR": "elsewhere",
    "CACHE_SIZE_LIMIT_BYTES": 10,
    "ENABLE_MMAP": False,
    "PROFILE_SECONDS": 1.0,
    "PRESERVE_ORDER": True,
}
PINS = Affinity({"matmul": "X.0"}, {"matmul": "pin"})
PLANS: dict[str, tuple[Model, CompileRequest]] = {
    "unchanged": (MODEL, REQUEST),
    "weight": (changed(change_weight), REQUEST),
    "declared type": (changed(declare_type), REQUEST),
    "declared type of another value": (changed(lambda p: declare_type(p, 1)), REQUEST),
    "pin": (MODEL, compile_request(*DEVICES, pins=PINS)),
    "pin on another device": (
        MODEL,
        compile_request(*DEVICES, pins=Affinity({"matmul": "X.1"}, {})),
    ),
    "order of devices": (MODEL, compile_request("X.1", "X.0")),
    "fewer devices": (MODEL, compile_request("X.0")),
    "name of a device": (MODEL, compile_request("X.0", descriptor("X.2"))),
    "plugin": (MODEL, compile_request("X.0", descriptor("X.1", plugin="Y"))),
    "version": (MODEL, compile_request("X.0", descriptor("X.1", version="1.1"))),
    "fingerprint": (MODEL, compile_request("X.0", descriptor("X.1", fingerprint="other"))),
    "option of a device": (
        MODEL,
        compile_request(*DEVICES, configs={"X.1": {"DISABLE_TRANSFORMATIONS": True}}),
    ),
    **{name: (MODEL, compile_request(*DEVICES, **{name: v})) for name, v in PLAN_OPTIONS.items()},
}


def test_each_field_changes_the_plan_key():
    keys = {name: plan_key(*case) for name, case in PLANS.items()}
    keys["encrypted"] = plan_key(MODEL, REQUEST, encrypted=True)
    equal = {key: [n for n in keys if keys[n] == key] for key in keys.values()}
    assert [names for names in equal.values() if len(names) > 1] == []


def test_declared_shapes_are_hints():
    models = [changed(lambda p, n=n: declare_type(p, 0, 1, n)) for n in (3, 4)]  # type: ignore[misc]
    assert plan_key(models[0], REQUEST) == plan_key(models[1], REQUEST)


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_options_of_requests_leave_the_plan_key(name):
    other = compile_request(*DEVICES, **{name: OTHER_OPTIONS[name]})
    assert plan_key(MODEL, other) == plan_key(MODEL, REQUEST)


def test_all_options_that_change_a_plan_are_tested():
    assert PLAN_OPTIONS.keys() == set(HETERO_PROPERTIES.caching_properties)


def test_thread_count_and_order_of_options_leave_the_keys():
    configs = {"X.0": {"DISABLE_TRANSFORMATIONS": True, "INFERENCE_NUM_THREADS": 3}}
    first = compile_request(*DEVICES, configs=configs)
    second = compile_request(*DEVICES, configs={"X.0": {"DISABLE_TRANSFORMATIONS": True}})
    assert plan_key(MODEL, first) == plan_key(MODEL, second)
    assert stage_key(MODEL, "X.0", first) == stage_key(MODEL, "X.0", second)


def test_cost_file_counts_by_content_not_by_path(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for path, text in zip(paths, ("one", "one", "two"), strict=True):
        path.write_text(text)
    first, same, other = (
        plan_key(MODEL, compile_request(*DEVICES, COST_FILE=str(p))) for p in paths
    )
    assert first == same != other
    assert first != plan_key(MODEL, REQUEST)
    paths[0].write_text("two")
    assert plan_key(MODEL, compile_request(*DEVICES, COST_FILE=str(paths[0]))) == other


def test_missing_cost_file_has_the_key_without_one(tmp_path):
    missing = compile_request(*DEVICES, COST_FILE=str(tmp_path / "none.json"))
    assert plan_key(MODEL, missing) == plan_key(MODEL, REQUEST)


@pytest.mark.parametrize(("name", "value"), [("FORMAT_VERSION", 0), ("hetero_version", lambda: "")])
def test_versions_change_both_keys(name, value, monkeypatch):
    before = plan_key(MODEL, REQUEST), stage_key(MODEL, "X.0", REQUEST)
    monkeypatch.setattr(key_module, name, value)
    assert plan_key(MODEL, REQUEST) != before[0]
    assert stage_key(MODEL, "X.0", REQUEST) != before[1]


STAGES: dict[str, tuple[Model, str, CompileRequest]] = {
    "unchanged": (MODEL, "X.0", REQUEST),
    "weight": (changed(change_weight), "X.0", REQUEST),
    "plugin": (MODEL, "X.0", compile_request(descriptor("X.0", plugin="Y"))),
    "version": (MODEL, "X.0", compile_request(descriptor("X.0", version="1.1"))),
    "fingerprint": (MODEL, "X.0", compile_request(descriptor("X.0", fingerprint="other"))),
    "option": (
        MODEL,
        "X.0",
        compile_request("X.0", configs={"X.0": {"DISABLE_TRANSFORMATIONS": True}}),
    ),
}


def test_each_field_changes_the_stage_key():
    keys = [stage_key(*case) for case in STAGES.values()]
    keys.append(stage_key(MODEL, "X.0", REQUEST, encrypted=True))
    keys.append(plan_key(MODEL, REQUEST))
    assert len(set(keys)) == len(keys)


def test_each_field_changes_the_key_of_verdicts():
    keys = [verdicts_key(*case) for case in STAGES.values()]
    keys.append(verdicts_key(MODEL, "X.0", compile_request("X.0", VERIFY_SECONDS=7.0)))
    keys.append(stage_key(MODEL, "X.0", REQUEST))
    assert len(set(keys)) == len(keys)
    assert verdicts_key(MODEL, "X.1", REQUEST) == keys[0]


def test_stage_key_ignores_device_names_pins_and_planning():
    key = stage_key(MODEL, "X.0", REQUEST)
    assert stage_key(MODEL, "X.1", REQUEST) == key
    assert stage_key(MODEL, "X.0", compile_request(*DEVICES, pins=PINS)) == key
    assert stage_key(MODEL, "X.0", compile_request(*DEVICES, **PLAN_OPTIONS)) == key
    other_device = compile_request("X.0", descriptor("X.1", fingerprint="other"))
    assert stage_key(MODEL, "X.0", other_device) == key
    assert stage_key(MODEL, "X.1", other_device) != key


def test_options_of_plugins_may_have_any_type():
    values = [{"DISABLE_TRANSFORMATIONS": value} for value in ({1, 2}, {1, 3})]
    keys = [stage_key(MODEL, "X.0", compile_request("X.0", configs={"X.0": v})) for v in values]
    assert keys[0] != keys[1]
