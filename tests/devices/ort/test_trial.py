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


@pytest.mark.parametrize(
    ("max_elements", "is_tried"), [(6, True), (5, True), (3, True), (2, False)]
)
def test_open_dimensions_are_smaller_in_trials_of_large_nodes(max_elements, is_tried, monkeypatch):
    monkeypatch.setattr(trial, "_MOST_ELEMENTS", max_elements)
    proto = parsed("(float[N,3] x) => (float[N,3] y) {y = Abs(x)}").to_proto()
    failure = trial.node_failure(proto.SerializeToString(), "Abs", ZeroProvider())
    assert failure.startswith("a trial run returns a wrong 'y'") == is_tried
