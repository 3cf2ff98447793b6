"""Fixtures of the behaviour tests: a device, a Core with it, and a Core that splits the model."""

import pytest

import hetero
from hetero.comparison.core_subject import CoreSubject
from hetero.devices.conformance.plugin_subject import PluginSubject
from tests.features.behaviours.controlled_device import DOUBLE, RunControl, controlled_plugin
from tests.support.networks import PAIR, X


@pytest.fixture
def control():
    return RunControl()


@pytest.fixture(params=["device", "DENSE", "HETERO:DENSE,CPU"])
def subject(request, control):
    plugin = controlled_plugin(control)
    if request.param == "device":
        yield PluginSubject(plugin())
        control.gate.set()
        return
    with hetero.Core("inprocess", plugins=[plugin]) as core:
        yield CoreSubject(core, request.param)
        control.gate.set()


@pytest.fixture
def double(subject, control):
    compiled = subject.compile_model(DOUBLE)
    yield compiled
    control.gate.set()
    compiled.close()


@pytest.fixture
def pair(subject):
    compiled = subject.compile_model(PAIR)
    yield compiled
    compiled.close()


@pytest.fixture
def infer_request(double):
    return double.create_infer_request()


@pytest.fixture
def running_request(control, infer_request):
    """Return a request whose run has started and waits at the closed gate."""
    control.gate.clear()
    infer_request.start_async({"x": X})
    assert control.entered.wait(300)
    return infer_request
