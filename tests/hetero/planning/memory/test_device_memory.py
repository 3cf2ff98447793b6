"""Predicted memory of a device: sizes in text, and the peak of its parts."""

from __future__ import annotations

import pytest
from onnx.parser import parse_model

from hetero.devices.model.reader import read_model
from hetero.devices.plugin.memory_traits import Copies, MemoryTraits
from hetero.partition.partition import partition
from hetero.planning.memory.device_memory import (
    DeviceMemory,
    MemoryModel,
    memory_option,
    parse_nbytes,
)
from hetero.planning.memory.predict_memory import (
    largest_request_count,
    largest_sequence_count,
    predict_memory,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("700MB", 700_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("2gb", 2_000_000_000),
        ("123", 123),
        ("4kB", 4000),
    ],
)
def test_sizes_have_decimal_and_binary_units(text, nbytes):
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["2GBB", "GB", "-1GB", "0", "1e9", "2 G B", ""])
def test_misspelled_sizes_are_refused(text):
    with pytest.raises(ValueError, match="expected a size such as"):
        parse_nbytes(text)


def test_peak_is_that_of_compiling_or_of_running():
    memory = DeviceMemory(
        "A",
        1000,
        runtime_nbytes=100,
        weights_nbytes=200,
        copies_nbytes=50,
        compile_nbytes=80,
        values_nbytes=60,
        request_nbytes=10,
        requests=3,
    )
    assert memory.peak_nbytes == 430
    assert memory.free_nbytes == 570
    assert DeviceMemory("A", 429, 100, 200, 50, 80, 60, 0, 10, 4).free_nbytes == -11
    assert DeviceMemory("A", None).fits


@pytest.mark.parametrize(
    ("operator", "factor"),
    [("y = Conv <pads = [0, 0, 0, 0]> (x, w)", 3.0), ("y = Mul (x, w)", 1.5)],
)
def test_convolutions_need_more_memory_for_values(operator, factor):
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y)
        <float[1, 1, 1, 1] w = {{2.0}}> {{ {operator} }}"""
    model = read_model(parse_model(text))
    traits = MemoryTraits(values_factor=1.5, convolution_values_factor=3.0, overwrites_inputs=True)
    split = partition(model, dict.fromkeys(model.node_names, "A"))
    (memory,) = predict_memory(model, split.subgraphs, MemoryModel({"A": traits}, {})).values()
    assert memory.values_nbytes == factor * 2 * 16 * 4


@pytest.mark.parametrize(
    ("reused_copies", "nbytes"),
    # Two products with a weight of 64 bytes each, and a convolution with one of 4 bytes.
    [(None, 2 * 64 + 4), (1.5, 1.5 * 64 + 4), (5.0, 2 * 64 + 4), (0.5, 64)],
)
def test_copies_of_weights_reuse_memory_while_a_model_is_compiled(reused_copies, nbytes):
    weights = ", ".join(["1.0"] * 16)
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y)
        <float[1, 1, 1, 1] w = {{2.0}}, float[4, 4] a = {{{weights}}},
         float[4, 4] b = {{{weights}}}>
        {{ c = Conv(x, w) d = MatMul(c, a) y = MatMul(d, b) }}"""
    model = read_model(parse_model(text))
    one = Copies(1.0)
    traits = MemoryTraits(
        compile_copies=one, convolution_compile_copies=one, reused_copies=reused_copies
    )
    split = partition(model, dict.fromkeys(model.node_names, "A"))
    (memory,) = predict_memory(model, split.subgraphs, MemoryModel({"A": traits}, {})).values()
    assert memory.compile_nbytes == nbytes


def test_blocks_of_all_stages_hold_the_values_of_the_largest():
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[8] x) => (float[16] y) {
        a = Sin(x) b = Cos(a) y = Concat<axis = 0>(b, b)}"""
    model = read_model(parse_model(text))
    split = partition(model, dict(zip(model.node_names, "ABA", strict=True)))
    traits = MemoryTraits(keeps_values=True, values_option="BLOCK", block_values_factor=2.0)
    expected = {0: 2 * 8 * 4 + (8 + 16) * 4, 100: 2.0 * 2 * (8 + 16) * 4}
    for block_nbytes, values_nbytes in expected.items():
        memory = MemoryModel({"A": traits.with_options({"BLOCK": block_nbytes})}, {})
        prediction = predict_memory(model, split.subgraphs, memory)["A"]
        assert prediction.values_nbytes == values_nbytes
    assert traits.with_blocks == traits.with_options({"BLOCK": 100})
    assert MemoryTraits().with_blocks == MemoryTraits()


@pytest.mark.parametrize(
    ("budget_nbytes", "count"),
    # 400 bytes are taken; each further request or sequence takes 100.
    [(1000, 7), (999, 6), (500, 2), (499, 1), (400, 1), (100, 1)],
)
def test_largest_count_within_all_budgets(budget_nbytes, count):
    one = {
        "A": DeviceMemory("A", budget_nbytes, weights_nbytes=400, request_nbytes=100, requests=3),
        "B": DeviceMemory("B", 10_000, weights_nbytes=400, request_nbytes=100),
        "C": DeviceMemory("C", 0),
        "D": DeviceMemory("D", None, request_nbytes=100),
    }
    assert largest_request_count(one, 64) == count
    assert largest_request_count(one, 2) == min(count, 2)
    one["A"] = DeviceMemory("A", budget_nbytes, weights_nbytes=400)
    states = {"A": 100, "B": 100, "C": 0, "D": 100}
    two = {name: DeviceMemory(name, None, states_nbytes=n) for name, n in states.items()}
    assert largest_sequence_count(one, two) == count
    assert largest_sequence_count({"D": one["D"]}, two) == 0


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (147_000_001, "148MB"),
        (147_000_000, "147MB"),
        (1_234_000, "1.24MB"),
        (162_000, "0.17MB"),
        (999_000_001, "1000MB"),
        (2_345_678_901, "2.35GB"),
        (3_000_000_000_001, "3.01TB"),
    ],
)
def test_suggested_size_suffices(nbytes, text):
    assert memory_option(nbytes) == text
    assert parse_nbytes(text) >= nbytes
