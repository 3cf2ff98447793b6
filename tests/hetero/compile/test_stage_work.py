"""Work of stages: proportions, and its way through blobs to the deployment."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import hetero
from hetero.affinity.affinity import Affinity
from hetero.compile.stage_work import with_stage_work
from hetero.devices.model.reader import read_model
from hetero.partition.partition import PlacedPartition, partition

#: The nodes, with their devices: the product has 2 x 64 x 64 operations, the others 64.
DEVICE_OF = {"negative": "NULL.0", "product": "NULL.1", "positive": "NULL.0"}


def product() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], "negative"),
        helper.make_node("MatMul", ["a", "w"], ["b"], "product"),
        helper.make_node("Relu", ["b"], ["y"], "positive"),
    ]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (1, 64)) for n in "xy")
    weights = [numpy_helper.from_array(np.ones((64, 64), np.float32), "w")]
    opset = helper.make_opsetid("", 17)
    return helper.make_model(
        helper.make_graph(nodes, "product", [x], [y], weights), opset_imports=[opset]
    )


def work_of_stages(compiled: Any) -> list[float]:
    return [stage.work for stage in compiled.target._deployment.placement.stages]


def test_work_counts_operations_and_bytes():
    model = read_model(product())
    placement = PlacedPartition(partition(model, DEVICE_OF), Affinity(DEVICE_OF))
    (with_work,) = with_stage_work([placement])
    negative, matmul, positive = (stage.work for stage in with_work.plan.stages)
    # At 20 GFLOP/s, 5 GB/s and 5 us per node; the product reads 64 x 64 weights.
    assert negative == positive == pytest.approx(5e-6 + 64 / 2e10 + 2 * 256 / 5e9)
    assert matmul == pytest.approx(5e-6 + 8192 / 2e10 + (2 * 256 + 4 * 64 * 64) / 5e9)


def test_work_of_stages_survives_export_and_cache(tmp_path):
    with hetero.Core("inprocess", devices={"NULL": 2}) as core:
        options = {"CACHE_DIR": str(tmp_path), "VERIFY": "NO"}

        def compile_model() -> hetero.CompiledModel:
            return core.compile_model(
                product(), "HETERO:NULL.0,NULL.1", options, affinity=DEVICE_OF
            )

        compiled = compile_model()
        work = work_of_stages(compiled)
        assert work[1] > 1.5 * work[0] > 0
        cached = compile_model()
        assert cached.get_property("LOADED_FROM_CACHE")
        assert work_of_stages(cached) == work
        assert work_of_stages(core.import_model(compiled.export_model())) == work


def test_plan_by_cost_takes_the_predicted_times():
    with hetero.Core("inprocess", devices={"NULL": 2}) as core:
        options = {"PERFORMANCE_HINT": "THROUGHPUT", "VERIFY": "NO"}
        options |= {"PROFILE_SECONDS": 0.2, "PLAN_SECONDS": 0.2}
        model, devices = product(), "HETERO:NULL.0,NULL.1"
        compiled = core.compile_model(model, devices, options, affinity=DEVICE_OF)
        predicted_s = [stage.run_s for stage in compiled.plan_report.stages]
        assert work_of_stages(compiled) == predicted_s


def test_only_overlapping_requests_share_cores():
    with hetero.Core("inprocess", devices={"NULL": 2}) as core:
        for hint, overlap in (("LATENCY", False), ("THROUGHPUT", True), ("", True)):
            options = {"PERFORMANCE_HINT": hint, "MODEL_DISTRIBUTION_POLICY": "PRIORITY"}
            compiled = core.compile_model(product(), "HETERO:NULL.0,NULL.1", options)
            assert compiled.target._deployment.limits.requests_overlap is overlap
