"""Blocks: runs with other shapes and other data, loops, memory, profiling and cancellation."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from onnx import TensorProto, helper

from hetero.devices.errors import KernelError, RequestCancelledError
from hetero.devices.plugin.program import RunContext
from tests.support.small_models import compile_cpu, make_model, run_onnxruntime, run_reference

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("grows", [False, True], ids=["same shapes", "a state that grows"])
def test_loop_with_another_number_of_trips_in_each_run(grows):
    steps = [
        helper.make_node("MatMul", ["state", "w"], ["t0"]),  # a constant from outside
        *(helper.make_node("Tanh", [f"t{i}"], [f"t{i + 1}"]) for i in range(6)),
        helper.make_node("Add", ["t6", "h"], ["row"]),  # a value that the run computed
        helper.make_node("Concat", ["state", "row"], ["next"], axis=0)
        if grows
        else helper.make_node("Identity", ["row"], ["next"]),
        helper.make_node("ReduceSum", ["next"], ["scanned"], keepdims=0),
        helper.make_node("Identity", ["on"], ["on_out"]),
    ]
    body = helper.make_graph(
        steps,
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, ["rows", 4]),
        ],
        [
            helper.make_tensor_value_info("on_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("scanned", TensorProto.FLOAT, []),
        ],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["h"]),
        helper.make_node("Loop", ["n", "", "x"], ["last", "sums"], body=body),
        helper.make_node("Neg", ["last"], ["y"]),
    ]
    constants = {"w": floats(4, 4)}
    model = make_model(nodes, {"x": floats(1, 4), "n": np.array(5)}, ["y", "sums"], constants)
    compiled = compile_cpu(model)
    for trips in (5, 5, 0, 3, 5):
        feeds = {"x": floats(1, 4), "n": np.array(trips)}
        expected = run_onnxruntime(model, feeds)
        for a, b in zip(compiled.run(list(feeds.values())), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_shapes_that_depend_on_data():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Shape", ["places"], ["size"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["positive"]),
        helper.make_node("Add", ["positive", "one"], ["y"]),
        helper.make_node("Neg", ["r"], ["z"]),
    ]
    model = make_model(nodes, {"x": floats(4, 5)}, ["y", "size", "z"], {"one": np.float32(1)})
    compiled = compile_cpu(model)
    for _ in range(6):
        x = floats(4, 5)
        for actual, expected in zip(compiled.run([x]), run_reference(model, {"x": x}), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_inputs_of_many_shapes():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[1] * 4, group=8),
        helper.make_node("MaxPool", ["d"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("Shape", ["p"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["p", "zeros"], ["y"]),
    ]
    constants = {"w": floats(8, 3, 3, 3), "v": floats(8, 1, 3, 3)}
    model = make_model(nodes, {"x": floats(1, 3, 9, 9)}, ["y"], constants)
    for axis, name in enumerate("nchw"):
        if axis != 1:
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    compiled = compile_cpu(model)
    for _ in range(2):
        for n, size in ((1, 9), (2, 9), (1, 30), (3, 4)):
            x = floats(n, 3, size, size + 1)
            (expected,) = run_onnxruntime(model, {"x": x})
            np.testing.assert_allclose(compiled.run([x])[0], expected, rtol=1e-4, atol=1e-5)


def test_later_runs_leave_earlier_outputs_unchanged():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"]),
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("SequenceConstruct", ["r", "t"], ["s"]),
        helper.make_node("SequenceAt", ["s", "one"], ["u"]),
        helper.make_node("Reshape", ["w", "wide"], ["v"]),
    ]
    constants = {"one": np.int64(1), "w": floats(2, 3), "wide": np.array([6])}
    model = make_model(nodes, {"x": floats(3, 4)}, ["r", "t", "i", "u", "v"], constants)
    compiled, x = compile_cpu(model), floats(3, 4)
    outputs = compiled.run([x])
    copies = [y.copy() for y in outputs]
    compiled.run([floats(3, 4)])
    for i, y in enumerate(outputs):
        np.testing.assert_array_equal(y, copies[i])
        assert y.flags.writeable
        assert not any(np.may_share_memory(y, other) for other in (x, *outputs[i + 1 :]))


def test_node_that_fails_in_a_later_run_is_named():
    nodes = [
        helper.make_node("Neg", ["i"], ["n"], name="minus"),
        helper.make_node("Gather", ["w", "n"], ["y"], name="take"),
    ]
    indices = np.array([1, 2], np.int64)
    model = make_model(nodes, {"i": indices}, ["y"], {"w": floats(5, 2)})
    compiled = compile_cpu(model)
    compiled.run([indices])
    with pytest.raises(KernelError, match=r"'take'.*float32\[5, 2\], int64\[2\]"):
        compiled.run([np.array([1, 9], np.int64)])
    np.testing.assert_array_equal(
        compiled.run([indices])[0], run_reference(model, {"i": indices})[0]
    )


def test_run_is_profiled_and_cancelled():
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Transpose", ["e"], ["y"])]
    x = floats(3, 4)
    compiled = compile_cpu(make_model(nodes, {"x": x}, ["y"]))
    context = RunContext(profile=True)
    compiled.run([x], context)
    assert set(context.node_times_s) == {node.name for node in compiled.executed_nodes()}
    context = RunContext()
    context.cancel()
    with pytest.raises(RequestCancelledError):
        compiled.run([x], context)


def test_concurrent_runs_have_their_own_memory():
    nodes = [helper.make_node("Exp", ["x"], ["e"])]
    nodes += [
        helper.make_node("Add", [f"a{i}" if i else "e", "x"], [f"a{i + 1}"]) for i in range(9)
    ]
    compiled = compile_cpu(make_model(nodes, {"x": floats(64, 64)}, ["a9"]))
    start = threading.Barrier(4)
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32)
        start.wait(60)
        for i in range(50):
            if not np.allclose(compiled.run([x])[0], np.exp(x) + 9 * x, rtol=1e-4, atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_random_numbers_are_drawn_in_each_run():
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("RandomNormalLike", ["zeros"], ["y"]),
    ]
    x = floats(8, 8)
    compiled = compile_cpu(make_model(nodes, {"x": x}, ["y"]))
    assert not np.array_equal(compiled.run([x])[0], compiled.run([x])[0])


def test_intermediates_are_freed_after_their_last_use():
    names = ["x", *(f"y{i}" for i in range(20)), "y"]
    nodes = [helper.make_node("Neg", [source], [target]) for source, target in pairwise(names)]
    x = floats(256, 1024)
    compiled = compile_cpu(make_model(nodes, {"x": x}, ["y"]))
    compiled.run([x])
    tracemalloc.start()
    try:
        compiled.run([x])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * x.nbytes  # the input and the output of one node


def test_unreferenced_model_frees_its_memory_at_once():
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Add", ["e", "w"], ["y"])]
    x = floats(500, 500)
    model = make_model(nodes, {"x": x}, ["y"], {"w": x})
    compile_cpu(model).run([x])
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        compiled = compile_cpu(model)
        compiled.run([x])
        before = tracemalloc.get_traced_memory()[0]
        compiled.close()
        del compiled
        freed = before - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert freed >= x.nbytes
