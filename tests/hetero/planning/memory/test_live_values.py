"""Live bytes of values at each node, compared with counts by hand."""

from __future__ import annotations

import pytest
from onnx.parser import parse_model

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.planning.memory.live_values import live_nbytes

IN_PLACE = MemoryTraits(overwrites_inputs=True)


def model(body: str, constants: str = "") -> Model:
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[10] x) => (float[10] y) {constants} {{ {body} }}"""
    return read_model(parse_model(text).SerializeToString())


def live(source: Model, traits: MemoryTraits) -> list[float]:
    found = live_nbytes(source, range(len(source.nodes)), ["y"], traits)
    return [nbytes / 40 for nbytes in found]


def test_values_are_live_until_their_last_reader():
    source = model("a = Neg(x) b = Sin(a) c = Cos(a) y = Add(b, c)")
    # The request holds x. With it: a; a and b; a, b and c; b, c and y.
    assert live(source, MemoryTraits()) == [2, 3, 4, 4]


def test_elementwise_results_replace_dead_inputs():
    source = model("a = Sin(x) b = Neg(a) c = Exp(b) y = Sqrt(c)")
    # The output has memory of its own: a stage that ends with Relu took that much more on ORT.
    assert live(source, IN_PLACE) == [2, 2, 2, 3]
    assert live(source, MemoryTraits()) == [2, 3, 3, 3]


def test_inputs_of_requests_are_not_replaced():
    assert live(model("y = Neg(x)"), IN_PLACE) == [2]


def test_views_take_no_memory_and_keep_their_source():
    source = model("a = Sin(x) b = Identity(a) c = Cos(a) y = Add(b, c)")
    assert live(source, MemoryTraits()) == [2, 2, 3, 4]


@pytest.mark.parametrize(
    "view", ["Identity(a)", "Reshape(a, k)", "Flatten<axis = 0>(a)", "Unsqueeze(a, k)"]
)
def test_each_operator_that_makes_a_view(view):
    source = model(f"a = Sin(x) b = {view} y = Squeeze(b)", "<int64[2] k = {1, -1}>")
    if "Unsqueeze" in view:
        source = model(f"a = Sin(x) b = {view} y = Squeeze(b)", "<int64[1] k = {0}>")
    assert live(source, MemoryTraits()) == [2, 2, 2]


def test_outputs_stay_live_to_the_end():
    source = model("y = Sin(x) b = Cos(x) c = Tan(b)")
    assert live(source, MemoryTraits()) == [2, 3, 4]
