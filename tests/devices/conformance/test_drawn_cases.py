"""Drawn cases of the conformance suite: they find errors in opsets that ONNX's suite lacks."""

from typing import ClassVar

import numpy as np
import pytest

from hetero.devices import OperatorFunction, OperatorPlugin
from hetero.devices.testing import drawn_results
from hetero.examples.third_party_plugin import DensePlugin


def softmax(x, *, axis=-1):
    """Softmax as opset 13 defines it."""
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


class SoftmaxPlugin(OperatorPlugin):
    """A plugin whose Softmax is wrong before opset 13."""

    name = "SOFTMAX"
    element_types = ("float",)
    since = 7
    operators: ClassVar = {"Softmax": softmax}


class CorrectPlugin(SoftmaxPlugin):
    """The same plugin without the older opsets."""

    operators: ClassVar = {"Softmax": OperatorFunction(softmax, since=13)}


def failures(plugin, num_cases):
    results = list(drawn_results(plugin, num_cases))
    assert len(results) == num_cases
    return [result for result in results if result.error]


@pytest.mark.slow
def test_operator_that_is_wrong_in_an_older_opset_fails():
    errors = failures(SoftmaxPlugin(), 12)
    assert errors
    for result in errors:
        assert any(f"Softmax-{opset}(" in result.name for opset in range(7, 13))
        assert "differs by up to" in result.error
    assert failures(CorrectPlugin(), 12) == []


@pytest.mark.slow
def test_conforming_plugin_passes_drawn_cases():
    assert failures(DensePlugin(), 100) == []


@pytest.mark.slow
def test_cases_depend_on_the_seed_alone():
    names = [[r.name for r in drawn_results(DensePlugin(), 4, seed)] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
