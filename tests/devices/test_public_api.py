"""The API for plugin authors: public names, and modules that importing it must not load."""

import inspect
import subprocess
import sys

import pytest

from hetero import devices


def test_public_names_exist_and_have_docstrings():
    names = devices.__all__
    assert len(set(names)) == len(names)
    for name in names:
        value = getattr(devices, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


@pytest.mark.parametrize(
    ("old", "new"),
    [("Answer", "Response"), ("StageRun", "StageTiming"), ("CompiledModel", "DeviceModel")],
)
def test_renamed_class_warns(old, new):
    with pytest.warns(DeprecationWarning, match=f"use '{new}'"):
        assert getattr(devices, old) is getattr(devices, new)


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        (devices.RunContext(), "left", "resident_outputs"),
        (devices.Response({}, ()), "stage_runs", "stage_timings"),
        (devices.StageTiming(0, "CPU"), "kept", "resident"),
        (devices.COMMON_PROPERTIES, "shaping", "caching_properties"),
        (devices.Tensor([1]), "held", "content"),
    ],
)
def test_renamed_attribute_warns(value, old, new):
    with pytest.warns(DeprecationWarning, match=f"use '{new}'"):
        assert getattr(value, old) == getattr(value, new)


def test_importing_devices_loads_no_vendor_runtime():
    code = (
        "import sys, hetero.devices, hetero.devices.testing, hetero.devices.null.plugin\n"
        "print(*(m for m in ('onnxruntime', 'ray', 'cupy', 'openvino', 'pytest')"
        " if m in sys.modules))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert process.stdout.strip() == ""
