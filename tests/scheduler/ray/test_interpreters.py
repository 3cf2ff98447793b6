"""Devices with their own Python interpreters, next to those of the cluster."""

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
OPENVINO_INTERPRETER = "HETERO_ORT_OPENVINO_PYTHON"
MARK = "HETERO_TEST_INTERPRETER"


def process_id(core: hetero.Core, device: str) -> int:
    executor: Any = core.executor
    pid: int = ray.get(executor._devices.device(device).actor.ping.remote())
    return pid


def has_own_interpreter(core: hetero.Core, device: str) -> bool:
    return MARK.encode() in Path(f"/proc/{process_id(core, device)}/environ").read_bytes()


def test_missing_interpreter_is_listed_with_its_error():
    plugins = ["ORT@/no/such/python", "CPU@/no/such/python"]
    with hetero.Core(plugins=plugins, devices={"CPU": 0}) as core:
        rows = {row.name: row for row in core.device_descriptors}
        assert "CPU" not in rows  # zero were requested
        assert "/no/such/python is no Python of use" in str(rows["ORT"].error)
        assert rows["NULL"].error is None


@pytest.fixture
def interpreter(tmp_path):
    """An interpreter with the packages of this one, recognisable by the variable `MARK`."""
    python = tmp_path / "a folder" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n{MARK}=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.slow
def test_device_restarts_on_its_own_interpreter(interpreter):
    plugins = [f"OTHER=CPU@{interpreter}", f"OTHER=NULL@{interpreter}", f"NULL@{interpreter}"]
    with hetero.Core(plugins=plugins) as core:
        rows = {row.name: row for row in core.device_descriptors}
        assert f"it is given as {plugins[0]} and as {plugins[1]}" in str(rows["OTHER"].error)
        assert rows["NULL"].error is None
    with hetero.Core(plugins=plugins[:1]) as core:
        compiled = core.compile_model(DOUBLE, "OTHER")
        for _ in range(2):
            np.testing.assert_array_equal(compiled(X)[0], X * 2)
            assert has_own_interpreter(core, "OTHER")
            os.kill(process_id(core, "OTHER"), signal.SIGKILL)
        assert not has_own_interpreter(core, "CPU")


@pytest.fixture(scope="module")
def provider():
    if OPENVINO_INTERPRETER not in os.environ:
        pytest.skip(
            f"{OPENVINO_INTERPRETER} names no environment with onnxruntime-openvino and hetero"
        )
    return f"ORT_OPENVINO@{os.environ[OPENVINO_INTERPRETER]}"


@pytest.mark.slow
def test_two_onnxruntime_versions_run_one_model(provider):
    other_version = provider.replace("ORT_OPENVINO", "OLD=ORT")
    with hetero.Core(plugins=[provider, other_version]) as core:
        versions = core.get_versions("HETERO:ORT,OLD,ORT_OPENVINO")
        assert versions["OLD"] == versions["ORT_OPENVINO"] != versions["ORT"]
        model = core.read_model("light:shufflenet")
        devices = ["ORT_OPENVINO", "ORT", "OLD", "CPU"]
        pins = {"op:MaxPool": "OLD", "op:Concat": "CPU", "op:Gemm": "ORT"}
        inputs = light_model_inputs(model)
        expected = light_model_outputs("shufflenet")
        with core.compile_model(model, f"HETERO:{','.join(devices)}", affinity=pins) as compiled:
            assert set(compiled.get_property("EXECUTION_DEVICES")) == set(devices)
            np.testing.assert_allclose(compiled(inputs)[0], expected[0], rtol=1e-3, atol=1e-5)
            blob = compiled.export_model()
        with core.import_model(blob) as imported:
            np.testing.assert_allclose(imported(inputs)[0], expected[0], rtol=1e-3, atol=1e-5)
