"""Trials of single nodes on a provider: wrong results are found at each size that is tried."""

import numpy as np
import pytest

from tests.support.networks import model as parsed

pytest.importorskip("onnxruntime")
from hetero.devices.ort import trial


class ZeroProvider:
    """A provider whose results are zeros."""

    def open_assignment_session(self, data):
        return self

    def run(self, names, feeds):
        return [np.zeros_like(feeds["x"])]


@pytest.mark.parametrize("max_elements", [6, 5, 3, 2])
@pytest.mark.parametrize("node", ["Abs(x)", "Add(x, z)", "Conv(x, w)"])
def test_dimensions_are_smaller_in_trials_of_large_nodes(node, max_elements, monkeypatch):
    ports = {"Abs": "float[N,3] x", "Add": "float[6,3] x, float[3] z"}
    ports["Conv"] = "float[1,2,40] x, float[4,2,1] w"
    monkeypatch.setattr(trial, "_MOST_ELEMENTS", 4 * max_elements if "w" in node else max_elements)
    operator = node.partition("(")[0]
    proto = parsed(f"({ports[operator]}) => (float y) {{y = {node}}}").to_proto()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    failure = trial.try_node(proto.SerializeToString(), operator, ZeroProvider()).failure
    assert failure.startswith("a trial run returns a wrong 'y'")


class NanProvider:
    """A provider of LeakyRelu that returns another value for NaN."""

    def __init__(self, value_for_nan):
        self.value_for_nan = value_for_nan

    def open_assignment_session(self, data):
        return self

    def run(self, names, feeds):
        x = feeds["x"]
        result = np.where(x < 0, np.float32(0.01) * x, x)
        return [np.where(np.isnan(x), np.float32(self.value_for_nan), result)]


@pytest.mark.parametrize(("value_for_nan", "is_noted"), [(0.0, True), (np.nan, False)])
def test_trials_note_nan_that_does_not_propagate(value_for_nan, is_noted):
    proto = parsed("(float[N,3] x) => (float[N,3] y) {y = LeakyRelu(x)}").to_proto()
    outcome = trial.try_node(proto.SerializeToString(), "LeakyRelu", NanProvider(value_for_nan))
    assert outcome.failure == ""
    assert ("NaN" in outcome.note) == is_noted


def test_trials_note_nan_of_an_element_that_is_not_selected():
    class ArithmeticWhere:
        def open_assignment_session(self, data):
            return self

        def run(self, names, feeds):
            weight = feeds["c"].astype(np.float32)
            return [weight * feeds["x"] + (1 - weight) * feeds["z"]]

    proto = parsed(
        "(bool[4] c, float[4] x, float[4] z) => (float[4] y) {y = Where(c, x, z)}"
    ).to_proto()
    outcome = trial.try_node(proto.SerializeToString(), "Where", ArithmeticWhere())
    assert outcome.failure == ""
    assert "NaN" in outcome.note


class FailingReference:
    """A reference that accepts finite inputs only."""

    def __init__(self, *arguments, **options):
        pass

    def run(self, names, feeds):
        if np.isnan(feeds["x"]).any():
            raise RuntimeError("NaN")
        return [np.where(feeds["x"] < 0, np.float32(0.01) * feeds["x"], feeds["x"])]


def test_reference_that_refuses_nan_causes_no_note(monkeypatch):
    monkeypatch.setattr(trial.onnxruntime, "InferenceSession", FailingReference)
    proto = parsed("(float[N,3] x) => (float[N,3] y) {y = LeakyRelu(x)}").to_proto()
    outcome = trial.try_node(proto.SerializeToString(), "LeakyRelu", NanProvider(0.0))
    assert outcome == trial.NodeTrial()
