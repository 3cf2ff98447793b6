"""What the tests of devices share: a device whose runs can be held, and its compiled models."""

import pytest

from tests.devices.networks import DOUBLE, PAIR, X, gated
from tests.examples.third_party_plugin import DensePlugin


@pytest.fixture
def plugin():
    return gated(DensePlugin)


@pytest.fixture
def double(plugin):
    compiled = plugin.compile_model(DOUBLE)
    yield compiled
    plugin.gate.set()
    compiled.close()


@pytest.fixture
def pair(plugin):
    compiled = plugin.compile_model(PAIR)
    yield compiled
    plugin.gate.set()
    compiled.close()


@pytest.fixture
def request_(double):
    return double.create_infer_request()


@pytest.fixture
def running(plugin, request_):
    """A request that has entered the device and waits there."""
    plugin.gate.clear()
    request_.start_async({"x": X})
    assert plugin.entered.wait(300)
    return request_
