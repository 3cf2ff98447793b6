"""Bound runs: the second run of each input shapes gives what the first, unbound, gave."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from hetero.devices.conformance.onnx_suite import Case, backend_cases
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import KernelError, RequestCancelledError
from hetero.devices.interpreter import bound_cache
from hetero.devices.interpreter.layout import Span, lay_out
from hetero.devices.interpreter.trace import trace
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import RunContext
from hetero.devices.request.compiled_model import CompiledModel
from tests.support.small_models import compile_cpu, make_model, run_onnxruntime, run_reference

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def same(a: Any, b: Any) -> bool:
    """Tell whether two values are equal to the last bit, NaN equal to itself."""
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if not isinstance(a, np.ndarray) or a.dtype.hasobject:
        return repr(a) == repr(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tobytes() == b.tobytes() or (
        a.dtype.kind == "f" and np.array_equal(a, b, equal_nan=True)
    )


def cases() -> list[Any]:
    """Return ONNX's small cases."""
    return [
        pytest.param(case, id=case.name)
        for case in backend_cases()
        if case.kind != "real" and "bernoulli" not in case.name
    ]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", cases())
def test_bound_and_unbound_give_the_same_arrays(case: Case) -> None:
    proto = case.model()
    model = read_model(proto)
    if CPUPlugin().query_model(model).unsupported:
        pytest.skip("no kernel")
    compiled = CPUPlugin().compile_model(model, {"DISABLE_TRANSFORMATIONS": True})
    for inputs, _ in case.data_sets(proto):
        own = len(inputs) == len(model.inputs)
        names = [port.name for port in (model.inputs if own else proto.graph.input)]
        feeds = dict(zip(names, inputs, strict=False))
        values = [feeds[port.name] for port in compiled.inputs]
        try:
            unbound = compiled.run(values)
        except KernelError:
            continue  # refused in the run, as the suite's list of misses says
        for _ in range(2):
            assert all(map(same, unbound, compiled.run(values)))
    compiled.close()


def twice(model: Any, inputs: list[np.ndarray], **config: Any) -> tuple[CompiledModel, list[Any]]:
    """Return a compiled model whose shapes are bound, and what it gave for the inputs."""
    compiled = compile_cpu(model, **config)
    compiled.run(inputs)
    return compiled, list(compiled.run(inputs))


@pytest.mark.parametrize("grows", [False, True], ids=["same shapes", "a state that grows"])
def test_bodies_are_bound_once_their_shapes_come_again(grows: bool) -> None:
    steps = [
        helper.make_node("MatMul", ["state", "w"], ["t0"]),  # a constant from outside
        *(helper.make_node("Tanh", [f"t{i}"], [f"t{i + 1}"]) for i in range(6)),
        helper.make_node("Add", ["t6", "h"], ["row"]),  # what the run computed
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
        helper.make_node("Loop", ["n", "", "x"], ["y", "sums"], body=body),
    ]
    constants = {"w": floats(4, 4)}
    model = make_model(nodes, {"x": floats(1, 4), "n": np.array(5)}, ["y", "sums"], constants)
    compiled = compile_cpu(model)
    for trips in (5, 5, 0, 3, 5):
        feeds = {"x": floats(1, 4), "n": np.array(trips)}
        wanted = run_onnxruntime(model, feeds)
        for a, b in zip(compiled.run(list(feeds.values())), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_shapes_that_depend_on_data_may_change_from_run_to_run() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Shape", ["places"], ["size"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["kept"]),
        helper.make_node("Add", ["kept", "one"], ["y"]),
        helper.make_node("Neg", ["r"], ["z"]),
    ]
    model = make_model(nodes, {"x": floats(4, 5)}, ["y", "size", "z"], {"one": np.float32(1)})
    compiled = compile_cpu(model)
    for _ in range(6):
        x = floats(4, 5)
        for got, wanted in zip(compiled.run([x]), run_reference(model, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_each_of_many_shapes_gives_its_own_answer() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"]),
        helper.make_node("Shape", ["s"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["s", "zeros"], ["y"]),
    ]
    w = floats(8, 8)
    model = make_model(nodes, {"x": floats(1, 8)}, ["y"], {"w": w})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    compiled = compile_cpu(model)
    for _ in range(3):
        for n in (*range(1, 70), 3):
            x = floats(n, 8)
            (wanted,) = run_onnxruntime(model, {"x": x})
            np.testing.assert_allclose(compiled.run([x])[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["Identity", "Relu", "Tanh"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 600])
def test_channels_are_scaled_wherever_they_lie_in_memory(
    channels: int, last: bool, activation: str
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]) if last else helper.make_node("Neg", "x", "c"),
        helper.make_node("Abs", ["c"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        helper.make_node(activation, ["n"], ["y"]),
    ]
    constants = {name: np.abs(floats(channels)) for name in "sbmv"}
    constants["v"] += 1
    constants["w"] = floats(channels, channels, 1, 1) / channels
    x = floats(2, channels, 11, 9)
    model = make_model(nodes, {"x": x}, ["y"], constants)
    (wanted,) = run_onnxruntime(model, {"x": x})
    compiled = compile_cpu(model)
    for _ in range(3):
        np.testing.assert_allclose(compiled.run([x])[0], wanted, rtol=1e-4, atol=1e-4)


def test_images_of_each_size_give_their_own_answer() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[1] * 4, group=8),
        helper.make_node("MaxPool", ["d"], ["y"], kernel_shape=[2, 2]),
    ]
    constants = {"w": floats(8, 3, 3, 3), "v": floats(8, 1, 3, 3)}
    model = make_model(nodes, {"x": floats(1, 3, 9, 9)}, ["y"], constants)
    for axis, name in enumerate("nchw"):
        if axis != 1:
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    compiled = compile_cpu(model)
    for _ in range(3):
        for n, size in ((1, 9), (2, 9), (1, 30), (3, 4)):
            x = floats(n, 3, size, size + 1)
            (wanted,) = run_onnxruntime(model, {"x": x})
            np.testing.assert_allclose(compiled.run([x])[0], wanted, rtol=1e-4, atol=1e-5)


def test_later_runs_do_not_change_outputs_that_were_given_out() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"]),
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("SequenceConstruct", ["r", "t"], ["s"]),
        helper.make_node("SequenceAt", ["s", "one"], ["u"]),
    ]
    model = make_model(nodes, {"x": floats(3, 4)}, ["r", "t", "i", "u"], {"one": np.int64(1)})
    x = floats(3, 4)
    compiled, first = twice(model, [x])
    kept = [y.copy() for y in first]
    compiled.run([floats(3, 4)])
    assert all(map(same, first, kept))
    for i, y in enumerate(first):
        assert not any(np.may_share_memory(y, other) for other in first[i + 1 :])


def test_a_bound_node_that_fails_is_named() -> None:
    nodes = [
        helper.make_node("Neg", ["i"], ["n"], name="minus"),
        helper.make_node("Gather", ["w", "n"], ["y"], name="take"),
    ]
    indices = np.array([1, 2], np.int64)
    model = make_model(nodes, {"i": indices}, ["y"], {"w": floats(5, 2)})
    compiled, _ = twice(model, [indices])
    with pytest.raises(KernelError, match=r"'take'.*float32\[5, 2\], int64\[2\]"):
        compiled.run([np.array([1, 9], np.int64)])
    assert same(compiled.run([indices])[0], run_reference(model, {"i": indices})[0])


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_run_is_profiled_and_cancelled(is_bound: bool) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Transpose", ["e"], ["y"])]
    x = floats(3, 4)
    compiled = compile_cpu(make_model(nodes, {"x": x}, ["y"]))
    if is_bound:
        compiled.run([x])
    context = RunContext(profile=True)
    compiled.run([x], context)
    assert set(context.node_times_s) == {node.name for node in compiled.executed_nodes()}
    context = RunContext()
    context.cancel()
    for inputs in (x, floats(5, 4)):  # of shapes that are bound, and of others
        with pytest.raises(RequestCancelledError):
            compiled.run([inputs], context)


@pytest.mark.parametrize("is_bound", [False, True])
def test_runs_side_by_side_have_memory_of_their_own(is_bound: bool) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"])]
    nodes += [
        helper.make_node("Add", [f"a{i}" if i else "e", "x"], [f"a{i + 1}"]) for i in range(9)
    ]
    compiled = compile_cpu(make_model(nodes, {"x": floats(64, 64)}, ["a9"]))
    if is_bound:
        compiled.run([floats(64, 64)])
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


@pytest.mark.parametrize(
    ("op_type", "keywords", "shapes"),
    [
        ("Softmax", {"axis": -1}, [(2, 300, 700)]),
        ("LayerNormalization", {"axis": 1}, [(2, 3, 4), (3, 4), (4,)]),
        ("LayerNormalization", {"axis": -1}, [(40, 5000), (5000,), (5000,)]),
        ("Sigmoid", {}, [(70001,)]),
        ("HardSwish", {}, [(3, 40000)]),
        ("Erf", {}, [(7, 20000)]),
        ("ReduceMean", {"keepdims": 0, "axes": [-1]}, [(3, 5000)]),
    ],
)
def test_arrays_larger_than_a_cache_are_bound(
    op_type: str, keywords: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    names = "xsb"[: len(shapes)]
    constants = {name: floats(*shape) for name, shape in zip(names[1:], shapes[1:], strict=True)}
    node = helper.make_node(op_type, list(names), ["y"], **keywords)
    x = floats(*shapes[0])
    model = make_model([node], {"x": x}, ["y"], constants)
    _, (got,) = twice(model, [x])
    np.testing.assert_allclose(got, run_onnxruntime(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]),
        ("abc,dcb->da", [(2, 3, 4), (5, 4, 3)]),
        ("bij,kj,bkl->lib", [(2, 3, 4), (5, 4), (2, 5, 6)]),
        ("...ij,jk->...ik", [(2, 3, 4), (4, 5)]),
    ],
)
def test_bound_sums_of_products_are_those_of_the_kernel(
    equation: str, shapes: list[tuple[int, ...]]
) -> None:
    feeds = {f"x{i}": floats(*shape) for i, shape in enumerate(shapes)}
    node = helper.make_node("Einsum", list(feeds), ["y"], equation=equation)
    model = make_model([node], feeds, ["y"])
    _, (got,) = twice(model, list(feeds.values()))
    assert same(got, compile_cpu(model).run(list(feeds.values()))[0])
    np.testing.assert_allclose(got, run_onnxruntime(model, feeds)[0], rtol=1e-4, atol=1e-5)


def test_a_value_that_is_read_twice_is_not_written_over_between() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Less", ["x", "one"], ["c"]),
        helper.make_node("Where", ["c", "n", "n"], ["y"]),
    ]
    compiled = compile_cpu(make_model(nodes, {"x": floats(4)}, ["y"], {"one": np.float32(1)}))
    for _ in range(3):
        x = floats(4)
        np.testing.assert_array_equal(compiled.run([x])[0], -x)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 1, 3)])
def test_bound_pads_are_those_of_the_kernel(shape: tuple[int, ...], mode: str) -> None:
    pads = np.array([1] * len(shape) + [2] * len(shape))
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Pad", ["r", "pads"], ["y"], mode=mode),
    ]
    feeds = {"x": floats(*shape)}
    model = make_model(nodes, feeds, ["y"], {"pads": pads}, opset=19)
    compiled = compile_cpu(model)
    for _ in range(3):
        x = np.abs(floats(*shape))
        wanted = np.pad(x, [(1, 2)] * len(shape), mode)
        np.testing.assert_array_equal(compiled.run([x])[0], wanted)


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64])
def test_bound_casts_are_those_of_the_kernel(kind: Any) -> None:
    with np.errstate(all="ignore"):
        x = np.array([0, 1, -1, 3e38, -3e38, 1e300, 2.5, 2**31, 2**40 + 1]).astype(kind)
    for wanted in (np.uint8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64):
        to = helper.np_dtype_to_tensor_dtype(np.dtype(wanted))
        model = make_model([helper.make_node("Cast", ["x"], ["y"], to=to)], {"x": x}, ["y"])
        _, (got,) = twice(model, [x])
        assert same(got, compile_cpu(model).run([x])[0])


def test_random_numbers_are_drawn_in_each_run() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("RandomNormalLike", ["zeros"], ["y"]),
    ]
    x = floats(8, 8)
    compiled, second = twice(make_model(nodes, {"x": x}, ["y"]), [x])
    assert not np.array_equal(second[0], compiled.run([x])[0])


def test_loops_see_what_the_bound_run_computed() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "h"], ["next"]),
            helper.make_node("Identity", ["on"], ["on_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("on_out", "next")],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["h"]),
        helper.make_node("Loop", ["n", "", "x"], ["last"], body=body),
        helper.make_node("Neg", ["last"], ["y"]),
    ]
    x = floats(3, 4)
    model = make_model(nodes, {"x": x, "n": np.array(2)}, ["y"])
    compiled = compile_cpu(model)
    for trips in (2, 2, 3, 0, 2):
        x = floats(3, 4)
        feeds = {"x": x, "n": np.array(trips)}
        wanted = run_onnxruntime(model, feeds)  # the reference makes no trip without a condition
        np.testing.assert_allclose(compiled.run([x, feeds["n"]])[0], wanted[0], rtol=1e-5)


@pytest.fixture
def traced_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have four shapes kept, for eight requests; return the rows of each input that is traced."""
    rows: list[int] = []

    def noted(block: Any, inputs: Any, context: Any) -> Any:
        rows.append(len(inputs[0]))
        return trace(block, inputs, context)

    monkeypatch.setattr(bound_cache, "trace", noted)
    monkeypatch.setattr(bound_cache, "_MOST_SHAPES", 4)
    monkeypatch.setattr(bound_cache, "_PATIENCE", 2)
    return rows


def of_any_length() -> CompiledModel:
    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": floats(1)}, ["y"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    return compile_cpu(model)


def test_more_shapes_than_are_kept_do_not_drive_out_one_another(traced_rows: list[int]) -> None:
    compiled = of_any_length()
    for _ in range(5):
        for rows in range(1, 7):
            x = floats(rows)
            np.testing.assert_array_equal(compiled.run([x])[0], -x)
    assert traced_rows == [1, 2, 3, 4]


def test_shapes_that_nobody_asks_for_any_more_make_room(traced_rows: list[int]) -> None:
    compiled = of_any_length()
    for rows in (1, 2, 3, 4, *[1, 5] * 9):
        compiled.run([floats(rows)])
    assert traced_rows == [1, 2, 3, 4, 5]


@given(
    st.lists(
        st.builds(
            lambda first, more, nbytes: Span(first, first + more, nbytes),
            st.integers(-1, 20),
            st.integers(0, 10),
            st.integers(0, 500),
        )
    )
)
def test_buffers_that_are_needed_at_once_lie_apart(spans: list[Span]) -> None:
    offsets, extent = lay_out(dict(enumerate(spans)))
    for i, a in enumerate(spans):
        assert offsets[i] % 64 == 0
        assert 0 <= offsets[i] <= offsets[i] + a.nbytes <= extent
        for j, b in enumerate(spans[:i]):
            if a.first <= b.last and b.first <= a.last:
                before, after = sorted([(offsets[i], a.nbytes), (offsets[j], b.nbytes)])
                assert before[0] + before[1] <= after[0]


def test_buffers_in_a_row_take_the_memory_of_two() -> None:
    spans = {i: Span(i, i + 1, 640) for i in range(50)}
    assert lay_out(spans)[1] == 2 * 640


def test_large_buffers_do_not_wait_for_a_hole_between_small_ones() -> None:
    ends = [(0, 6, 320), (1, 2, 1408), (2, 3, 1408), (3, 4, 384), (3, 3, 1536)]
    most = 320 + 1408 + 384 + 1536  # at the task of index 3
    assert lay_out({i: Span(*end) for i, end in enumerate(ends)})[1] == most


@pytest.mark.parametrize(
    ("channels", "group", "size", "most"),
    [(128, 128, 28, 4.3), (8, 8, 128, 4.1), (8, 1, 128, 4.6), (24, 1, 96, 5.2)],
    ids=["weights of channels", "channels", "columns", "tiles"],
)
def test_steps_and_weights_of_bound_convolutions_take_less_than_their_values(
    channels: int, group: int, size: int, most: float
) -> None:
    weights = {f"w{i}": floats(channels, channels // group, 3, 3) for i in range(3)}
    names = ["x", *(f"y{i}" for i in range(2)), "y"]
    nodes = [
        helper.make_node("Conv", [names[i], f"w{i}"], [names[i + 1]], group=group, pads=[1] * 4)
        for i in range(3)
    ]
    x = floats(1, channels, size, size)
    model = make_model(nodes, {"x": x}, ["y"], weights)
    twice(model, [x])
    tracemalloc.start()
    try:
        twice(model, [x])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most * x.nbytes


def test_a_model_that_is_dropped_frees_its_memory_at_once() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("CumSum", ["e", "i"], ["y"])]
    x = floats(500, 500)
    model = make_model(nodes, {"x": x}, ["y"], {"i": np.int64(0)})
    twice(model, [x])
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        compiled, _ = twice(model, [x])
        held = tracemalloc.get_traced_memory()[0]
        compiled.close()
        del compiled
        freed = held - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert freed >= x.nbytes
