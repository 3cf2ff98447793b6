"""Registering and unloading plugins, and one Core in many threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hetero
from hetero.devices.errors import (
    ArgumentError,
    PluginLoadError,
    UnknownDeviceError,
    UnsupportedOperationError,
)
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.core_fixtures import core_fixture
from tests.support.networks import DOUBLE, X

DENSE = "hetero.examples.third_party_plugin:DensePlugin"


core = core_fixture()


@pytest.mark.parametrize("plugin", [DENSE, DensePlugin])
@pytest.mark.parametrize("name", [None, "DENSE2"])
def test_registered_plugin_has_devices(core, plugin, name):
    before = core.available_devices
    core.register_plugin(plugin, name)
    name = name or "DENSE"
    assert core.available_devices == [*before, name]
    compiled = core.compile_model(DOUBLE, f"HETERO:{name}")
    np.testing.assert_array_equal(compiled(X)[0], X * 2)
    assert compiled.get_property("EXECUTION_DEVICES") == [name]
    assert set(core.get_versions(f"HETERO:CPU,{name}")) == {"HETERO", "CPU", name}


def test_register_plugin_under_several_names(core):
    core.register_plugin(DENSE)
    core.register_plugin(DENSE, "OTHER")
    model = core.compile_model(DOUBLE, "HETERO:OTHER,DENSE")
    assert model.get_property("EXECUTION_DEVICES") == ["OTHER"]
    for plugin, name in ((DENSE, None), (DENSE, "OTHER"), (DensePlugin, "CPU")):
        with pytest.raises(ArgumentError, match="register it under a different name"):
            core.register_plugin(plugin, name)
    np.testing.assert_array_equal(core.compile_model(DOUBLE, "DENSE")(X)[0], X * 2)


@pytest.mark.parametrize(
    ("plugin", "name", "error"),
    [
        ("no.such.module:Plugin", "MISSING", "No module named"),
        ("hetero.examples.third_party_plugin", "MISSING", "module:attr"),
        (DENSE, "WITH.DOT", "must not contain a dot"),
    ],
)
def test_plugin_load_error_is_listed_and_raised(core, plugin, name, error):
    core.register_plugin(plugin, name)
    (row,) = (row for row in core.device_descriptors if row.name == name)
    assert error in row.error
    if "." not in name:
        with pytest.raises(PluginLoadError, match=error):
            core.compile_model(DOUBLE, name)


def test_unloaded_plugin_is_recreated_for_new_models():
    instances = []

    class CountedPlugin(DensePlugin):
        def __init__(self):
            super().__init__()
            instances.append(self)
            self.closed = False

        def close(self):
            self.closed = True

    with hetero.Core("inprocess", plugins=[CountedPlugin]) as core:
        compiled = core.compile_model(DOUBLE, "DENSE")
        request = compiled.create_infer_request()
        for _ in range(2):
            core.unload_plugin("DENSE")
            new_model = core.compile_model(DOUBLE, "DENSE")
            for model in (compiled, new_model):
                np.testing.assert_array_equal(model(X)[0], X * 2)
        np.testing.assert_array_equal(request.infer(X)[0], X * 2)
        assert [plugin.closed for plugin in instances] == [False] * 3
        with pytest.raises(UnknownDeviceError, match="'NOBODY'"):
            core.unload_plugin("NOBODY")
    assert all(plugin.closed for plugin in instances)


def test_register_plugin_before_ray_starts():
    core = hetero.Core()
    core.register_plugin(DENSE, "OTHER")
    assert core._devices.plugins == (f"OTHER={DENSE}",)
    core._devices.running_executor = object()
    with pytest.raises(UnsupportedOperationError, match="before the first"):
        core.register_plugin(DENSE)
    with pytest.raises(UnsupportedOperationError, match="nodes of a cluster"):
        core.unload_plugin("CPU")


@pytest.mark.ray
@pytest.mark.slow
def test_plugin_under_another_name_on_ray(local_ray):
    with hetero.Core() as core:
        core.register_plugin(DENSE, "OTHER")
        compiled = core.compile_model(DOUBLE, "OTHER")
        np.testing.assert_array_equal(compiled(X)[0], X * 2)


@pytest.mark.slow
def test_concurrent_use_of_one_core(core):
    """Each thread does 100 operations of ten kinds."""
    core.register_plugin(DENSE)
    shared = core.compile_model(DOUBLE, "HETERO:DENSE,CPU", affinity={"*": "DENSE"})
    barrier = threading.Barrier(8, timeout=300)

    def use(thread):
        barrier.wait()
        for i in range(thread, thread + 100):
            match i % 10:
                case 0:
                    np.testing.assert_array_equal(shared(X + i)[0], (X + i) * 2)
                case 1:
                    core.set_property("CPU", {"NUM_STREAMS": 1 + i % 3})
                case 2:
                    assert core.get_property("CPU", "NUM_STREAMS") in (1, 2, 3)
                case 3:
                    assert not core.query_model(DOUBLE, "HETERO:DENSE,CPU").unsupported
                case 4:
                    compiled = core.compile_model(DOUBLE, "HETERO:CPU,DENSE")
                    np.testing.assert_array_equal(compiled(X)[0], X * 2)
                    compiled.close()
                case 5:
                    request = shared.create_infer_request()
                    request.start_async(X)
                    request.wait()
                    np.testing.assert_array_equal(request.results[0], X * 2)
                case 6:
                    core.register_plugin(DENSE, f"T{thread}I{i}")
                case 7:
                    core.unload_plugin("DENSE")
                case 8:
                    imported = core.import_model(shared.export_model())
                    np.testing.assert_array_equal(imported(X)[0], X * 2)
                case 9:
                    assert {"CPU", "DENSE"} <= set(core.available_devices)
                    assert core.get_versions("CPU")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
