"""Devices on interpreters of their own, beside those of the cluster's."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hetero
from hetero.devices.model.light_models import light_model_inputs, light_model_outputs
from tests.support.networks import DOUBLE, X

pytestmark = pytest.mark.ray
#: An environment with `onnxruntime-openvino`, hetero and the same Ray and Python.
OTHER = "HETERO_ORT_OPENVINO_PYTHON"
OWN = "HETERO_TEST_INTERPRETER"


def process(core: hetero.Core, device: str) -> int:
    executor: Any = core.executor
    pid: int = ray.get(executor._devices.device(device).actor.ping.remote())
    return pid


def is_on_its_own(core: hetero.Core, device: str) -> bool:
    return OWN.encode() in Path(f"/proc/{process(core, device)}/environ").read_bytes()


def test_an_interpreter_that_is_not_there_is_a_row_and_the_rest_serves() -> None:
    plugins = ["ORT@/no/such/python", "CPU@/no/such/python"]
    with hetero.Core(plugins=plugins, devices={"CPU": 0}) as core:
        rows = {row.name: row for row in core.device_descriptors}
        assert "CPU" not in rows  # none is wanted
        assert "/no/such/python is no Python of use" in str(rows["ORT"].error)
        assert rows["NULL"].error is None


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """An interpreter with the environment of ours, which it says by `OWN`."""
    python = tmp_path / "a folder" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n{OWN}=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.slow
def test_a_device_runs_on_its_own_interpreter_and_comes_back_there(interpreter: str) -> None:
    plugins = [f"OTHER=CPU@{interpreter}", f"OTHER=NULL@{interpreter}", f"NULL@{interpreter}"]
    with hetero.Core(plugins=plugins) as core:
        rows = {row.name: row for row in core.device_descriptors}
        assert f"it is given as {plugins[0]} and as {plugins[1]}" in str(rows["OTHER"].error)
        assert rows["NULL"].error is None
    with hetero.Core(plugins=plugins[:1]) as core:
        compiled = core.compile_model(DOUBLE, "OTHER")
        for _ in range(2):
            np.testing.assert_array_equal(compiled(X)[0], X * 2)
            assert is_on_its_own(core, "OTHER")
            os.kill(process(core, "OTHER"), signal.SIGKILL)
        assert not is_on_its_own(core, "CPU")


@pytest.fixture(scope="module")
def provider() -> str:
    if OTHER not in os.environ:
        pytest.skip(f"{OTHER} names no environment with onnxruntime-openvino and hetero")
    return f"ORT_OPENVINO@{os.environ[OTHER]}"


@pytest.mark.slow
def test_both_wheels_of_onnx_runtime_serve_one_model(provider: str) -> None:
    old = provider.replace("ORT_OPENVINO", "OLD=ORT")
    with hetero.Core(plugins=[provider, old]) as core:
        versions = core.get_versions("HETERO:ORT,OLD,ORT_OPENVINO")
        assert versions["OLD"] == versions["ORT_OPENVINO"] != versions["ORT"]
        model = core.read_model("light:shufflenet")
        devices = ["ORT_OPENVINO", "ORT", "OLD", "CPU"]
        pins = {"op:MaxPool": "OLD", "op:Concat": "CPU", "op:Gemm": "ORT"}
        inputs = light_model_inputs(model)
        want = light_model_outputs("shufflenet")
        with core.compile_model(model, f"HETERO:{','.join(devices)}", affinity=pins) as compiled:
            assert set(compiled.get_property("EXECUTION_DEVICES")) == set(devices)
            np.testing.assert_allclose(compiled(inputs)[0], want[0], rtol=1e-3, atol=1e-5)
            blob = compiled.export_model()
        with core.import_model(blob) as again:
            np.testing.assert_allclose(again(inputs)[0], want[0], rtol=1e-3, atol=1e-5)
