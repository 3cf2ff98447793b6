"""What behaves as it should: a device, a Core of it, and several devices with a cut between."""

import pytest

import hetero
from hetero.comparison.core_subject import CoreSubject
from hetero.devices.conformance.plugin_subject import PluginSubject
from tests.behaviours.held import DOUBLE, Held, held_plugin
from tests.support.networks import PAIR, X


@pytest.fixture
def held():
    return Held()


@pytest.fixture(params=["device", "DENSE", "HETERO:DENSE,CPU"])
def subject(request, held):
    plugin = held_plugin(held)
    if request.param == "device":
        yield PluginSubject(plugin())
        held.gate.set()
        return
    with hetero.Core("inprocess", plugins=[plugin]) as core:
        yield CoreSubject(core, request.param)
        held.gate.set()


@pytest.fixture
def double(subject, held):
    compiled = subject.compile_model(DOUBLE)
    yield compiled
    held.gate.set()
    compiled.close()


@pytest.fixture
def pair(subject):
    compiled = subject.compile_model(PAIR)
    yield compiled
    compiled.close()


@pytest.fixture
def request_(double):
    return double.create_infer_request()


@pytest.fixture
def running(held, request_):
    """A request that has entered the device and waits there."""
    held.gate.clear()
    request_.start_async({"x": X})
    assert held.entered.wait(300)
    return request_
