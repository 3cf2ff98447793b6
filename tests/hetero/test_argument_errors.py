"""Errors for invalid arguments, which suggest a fix."""

import math

import numpy as np
import onnx
import pytest

from hetero.devices.errors import (
    ArgumentTypeError,
    DeadlineError,
    ModelError,
    TensorShapeError,
    UnknownDeviceError,
)

CONV = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 3, 8, 8] image) => (float[N, 4, 6, 6] y) { y = Conv(image, w) }"""
)
CONV.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w"))


def test_reshape_with_wrong_channels_is_rejected(core):
    model = core.read_model(CONV)
    with pytest.raises(ModelError, match=r"expects an input of 3 channels .* got 4"):
        model.reshape({"image": [1, 4, 8, 8]})
    assert model.reshape({"image": [2, 3, 9, 9]}).outputs[0].shape == (2, 4, 7, 7)


@pytest.mark.parametrize("timeout_s", [math.nan, "soon"])
def test_invalid_timeout_is_rejected(core, timeout_s):
    with core.compile_model(CONV, "CPU") as compiled:
        request = compiled.create_infer_request()
        with pytest.raises(ArgumentTypeError, match="expected a number of seconds"):
            request.infer(np.ones((1, 3, 8, 8), np.float32), timeout_s=timeout_s)
        with pytest.raises(DeadlineError):
            request.infer(np.ones((1, 3, 8, 8), np.float32), timeout_s=-1)


def test_wrong_input_size_suggests_resize_or_transpose(core):
    with core.compile_model(core.read_model(CONV).reshape([1, 3, 8, 8]), "CPU") as compiled:
        with pytest.raises(TensorShapeError, match=r"Resize the data, .*model\.reshape"):
            compiled(np.ones((1, 3, 4, 4), np.float32))
        with pytest.raises(TensorShapeError, match="or transpose it"):
            compiled(np.ones((1, 8, 8, 3), np.float32))


def test_single_pin_as_string(core):
    with core.compile_model(CONV, "HETERO:ORT,CPU", affinity="op:Conv=CPU") as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ["CPU"]


def test_unknown_device_error_omits_other_load_errors(core):
    with pytest.raises(UnknownDeviceError) as error:
        core.query_model(CONV, "TPU")
    assert "could not be loaded" not in str(error.value)
