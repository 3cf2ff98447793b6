"""`InferRequest` on a fake target."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import InferenceError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.promise import Promise


def test_failed_run_keeps_no_reference_to_its_inputs():
    states: list[weakref.ref[Any]] = []
    future: Promise[Any] = Promise()
    future.set_exception(InferenceError("no"))

    def submit(values: Any, request: Any) -> Any:
        states.append(weakref.ref(values["s"]))
        return SimpleNamespace(future=future, request_id=1, waited_s=0.0, story=tuple)

    port = TensorSpec("s", "tensor(float)", (1,))
    target: Any = SimpleNamespace(
        name="m",
        inputs=(),
        outputs=(),
        optional_inputs=(),
        variables=(Variable(port, port),),
        profiles=False,
        submit=submit,
        copy_input=np.ndarray.copy,
    )
    request = InferRequest(target)
    gc.disable()
    try:
        request.start_async()
        assert states[0]() is None
    finally:
        gc.enable()
    with pytest.raises(InferenceError):
        request.wait()
