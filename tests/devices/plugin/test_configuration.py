"""Properties of plugins and their devices: set values, defaults, checks and errors."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from hetero.devices import Configuration, Payload, Property, PropertyTable
from hetero.devices.errors import (
    ArgumentTypeError,
    PropertyError,
    UnknownDeviceError,
    UnknownPropertyError,
)
from hetero.examples.third_party_plugin import DensePlugin
from hetero.scheduler.device.discovery import probe_node
from hetero.scheduler.device.host import DeviceHost
from tests.support.networks import DOUBLE
from tests.support.pair_plugin import MEMORY, PairPlugin


@pytest.mark.parametrize("device_id", MEMORY)
def test_property_value_depends_on_device(device_id):
    plugin = PairPlugin()
    compiled = plugin.compile_model(DOUBLE, {"DEVICE_ID": device_id})
    for get in (
        lambda name: plugin.get_property(name, device_id),
        compiled.get_property,
        _host(plugin, device_id).get_property,
    ):
        assert get("FULL_DEVICE_NAME") == f"the {device_id} one"
        assert get("DEVICE_ARCHITECTURE") == f"chip-{device_id}"
        assert get("DEVICE_TOTAL_MEM_SIZE") == MEMORY[device_id]
        assert get("DEVICE_ID") == device_id


def test_device_id_defaults_to_first_device():
    plugin = PairPlugin()
    assert plugin.get_property("FULL_DEVICE_NAME") == "the left one"
    assert plugin.compile_model(DOUBLE).device == "PAIR.left"
    plugin.set_property({"DEVICE_ID": "right"})
    assert plugin.get_property("FULL_DEVICE_NAME") == "the right one"
    assert plugin.compile_model(DOUBLE).device == "PAIR.right"


def test_unknown_device_id_raises():
    plugin = PairPlugin()
    for act in (
        lambda: plugin.set_property({"DEVICE_ID": "middle"}),
        lambda: plugin.get_property("FULL_DEVICE_NAME", "middle"),
        lambda: plugin.compile_model(DOUBLE, {"DEVICE_ID": "middle"}),
    ):
        with pytest.raises(UnknownDeviceError, match="devices are left, right"):
            act()
    assert plugin.get_property("DEVICE_ID") == "left"


def test_probe_of_node_describes_each_device():
    rows = probe_node("n", [PairPlugin], {"PAIR": 3, "CPU": 0, "ORT": 0, "NULL": 0}, num_cores=2)
    rows = [row for row in rows if row.plugin == "PAIR"]
    assert [row.device_id for row in rows] == ["left", "right", "left"]
    assert [row.full_name for row in rows] == ["the left one", "the right one", "the left one"]
    assert [row.memory_nbytes for row in rows] == [2_000, 1_000, 2_000]


def test_options_of_a_call_precede_set_values_and_these_defaults():
    table = PropertyTable(
        *(Property(name, int, 1, True, "A number.") for name in ("A", "B", "C")),
        Property("D", int, 1, False, "Read-only."),
    )
    configuration = Configuration(table, "owner")
    configuration.set({"A": 2, "B": "2"})
    assert configuration.effective({"B": 3}) == {"A": 2, "B": 3, "C": 1}
    assert configuration.effective() == {"A": 2, "B": 2, "C": 1}
    assert configuration.values == {"A": 2, "B": 2}
    configuration.set({"B": 4})
    assert (configuration.get("A"), configuration.get("B"), configuration.get("D")) == (2, 4, 1)


def _host(plugin: PairPlugin, device_id: str) -> DeviceHost:
    rows = probe_node("n", [PairPlugin], {"CPU": 0, "ORT": 0, "NULL": 0}, num_cores=2)
    (row,) = (row for row in rows if row.device_id == device_id)
    return DeviceHost(row, plugin)


@pytest.mark.parametrize(
    "name",
    [
        "INFERENCE_PRECISION_HINT",
        "EXECUTION_MODE_HINT",
        "MODEL_PRIORITY",
        "PERFORMANCE_HINT",
        "INFERENCE_NUM_THREADS",
        "DISABLE_TRANSFORMATIONS",
        "LOG_LEVEL",
    ],
)
def test_unsupported_property_raises(name):
    with pytest.raises(UnknownPropertyError, match=f"no property '{name}' on DENSE"):
        DensePlugin().set_property({name: 1})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num_streams", "Did you mean NUM_STREAMS?"),
        ("Cache_Dir", "Did you mean CACHE_DIR?"),
        ("PERF_COUNTS", "Did you mean PERF_COUNT?"),
        (7, "Expected CACHE_DIR, "),
    ],
)
def test_unknown_property_error_suggests_or_lists_names(name, hint):
    with pytest.raises(UnknownPropertyError) as caught:
        DensePlugin().set_property({name: 1})
    assert str(caught.value).startswith(f"no property {name!r} on DENSE")
    assert hint in str(caught.value)
    assert "FULL_DEVICE_NAME" not in str(caught.value), "a read-only property is listed"


@pytest.mark.parametrize("config", ["LATENCY", ["PERF_COUNT"], 3])
def test_options_that_are_not_a_mapping_raise(config):
    with pytest.raises(ArgumentTypeError, match="expected options as a mapping"):
        DensePlugin().compile_model(DOUBLE, config)


def test_choices_apply_to_each_element_of_a_tuple():
    modes = Property("MODES", tuple, (), True, "Modes.", choices=("FAST", "EXACT"))
    assert modes.parse("FAST, EXACT") == ("FAST", "EXACT")
    with pytest.raises(PropertyError, match=r"expected one of 'FAST', 'EXACT'"):
        modes.parse("FAST, SLOW")


def test_property_table_pickles_without_check_functions():
    table = PropertyTable(
        Property("SIZE", int, 1, True, "Size.", minimum=1, check=lambda size: "too large")
    )
    copy = pickle.loads(pickle.dumps(table))
    assert Configuration(copy, "owner").parse({"SIZE": "2"}) == {"SIZE": 2}
    with pytest.raises(PropertyError, match="owner: SIZE=0: expected a number >= 1"):
        Configuration(copy, "owner").parse({"SIZE": 0})


def test_configuration_copies_dict_values():
    sizes = {"a": 1}
    table = PropertyTable(Property("SIZES", dict, {}, True, "Sizes."))
    configuration = Configuration(table, "owner")
    configuration.set({"SIZES": sizes})
    sizes["a"] = 2
    configuration.get("SIZES")["b"] = 3
    assert configuration.get("SIZES") == {"a": 1}
    Configuration(table, "other").get("SIZES")["b"] = 3
    assert Configuration(table, "other").get("SIZES") == {}


def test_set_is_atomic_for_concurrent_readers():
    table = PropertyTable(*(Property(n, int, 0, True, "A number.") for n in ("A", "B")))
    configuration = Configuration(table, "owner")
    inconsistent = []

    def write() -> None:
        for number in range(2_000):
            configuration.set({"A": number, "B": number})

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        values = configuration.effective()
        inconsistent += [values] * (values["A"] != values["B"])
    assert not inconsistent


def test_imported_weights_are_mapped_only_with_enable_mmap(tmp_path):
    weights = []

    class ImportingPlugin(DensePlugin):
        def load(self, payload, model, config):
            weights.append(payload.tensors["w"])
            return super().compile(DOUBLE, config)

    path = tmp_path / "w"
    np.arange(4.0).tofile(path)
    mapped = np.memmap(path, np.float64, "r")
    plugin = ImportingPlugin()
    for enabled in (True, False):
        plugin.import_model(Payload({}, {"w": mapped}), DOUBLE, {"ENABLE_MMAP": enabled})
    assert [np.shares_memory(array, mapped) for array in weights] == [True, False]
    np.testing.assert_array_equal(weights[1], mapped)


@pytest.mark.parametrize("value", [2**53 + 1, str(2**53 + 1)])
def test_integer_without_exact_float_is_parsed_exactly(value):
    parsed = Property("BYTES", int, 0, True, "Bytes.").parse(value)
    assert parsed == 2**53 + 1
