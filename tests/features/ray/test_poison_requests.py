"""Quarantine of poison requests: a request that kills its device fails no other request."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import hetero
from hetero.devices.errors import DeviceLostError
from tests.support.small_models import make_model

pytestmark = [pytest.mark.ray, pytest.mark.slow]  # the device is restarted four times

X = np.ones(4, np.float32)
PLUGIN = "tests.support.poisonous_plugin:PoisonousPlugin"


def test_only_the_poison_request_fails():
    with hetero.Core(devices={"POISONOUS": 1}, plugins=(PLUGIN,)) as core:
        negated = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": X}, ["y"])
        model = core.compile_model(negated, "POISONOUS", {"MAX_ATTEMPTS": 2})
        requests = [model.create_infer_request() for _ in range(8)]
        for number, request in enumerate(requests):
            request.start_async(np.full(4, number or 666, np.float32))
        with pytest.raises(DeviceLostError):
            requests[0].wait()
        for number, request in enumerate(requests[1:], 1):
            request.wait()
            np.testing.assert_array_equal(request.results[0], np.full(4, -number))
