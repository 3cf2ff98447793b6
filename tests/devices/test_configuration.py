"""Properties of plugins: what is set, for which device, and what is refused."""

from __future__ import annotations

import pickle
import threading
from typing import Any

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
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.probe import probe_node
from tests.support.networks import DOUBLE
from tests.support.pair_plugin import MEMORY, PairPlugin


@pytest.mark.parametrize("device_id", MEMORY)
def test_properties_of_a_device_are_its_own(device_id: str) -> None:
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


def test_the_first_device_is_meant_unless_another_is_set() -> None:
    plugin = PairPlugin()
    assert plugin.get_property("FULL_DEVICE_NAME") == "the left one"
    assert plugin.compile_model(DOUBLE).device == "PAIR.left"
    plugin.set_property({"DEVICE_ID": "right"})
    assert plugin.get_property("FULL_DEVICE_NAME") == "the right one"
    assert plugin.compile_model(DOUBLE).device == "PAIR.right"


def test_a_device_that_is_not_there_is_refused_when_it_is_set() -> None:
    plugin = PairPlugin()
    for act in (
        lambda: plugin.set_property({"DEVICE_ID": "middle"}),
        lambda: plugin.get_property("FULL_DEVICE_NAME", "middle"),
        lambda: plugin.compile_model(DOUBLE, {"DEVICE_ID": "middle"}),
    ):
        with pytest.raises(UnknownDeviceError, match="it has left, right"):
            act()
    assert plugin.get_property("DEVICE_ID") == "left"


def test_rows_of_a_node_describe_each_device() -> None:
    rows = probe_node("n", [PairPlugin], {"PAIR": 3, "CPU": 0, "ORT": 0, "NULL": 0}, num_cores=2)
    rows = [row for row in rows if row.plugin == "PAIR"]
    assert [row.device_id for row in rows] == ["left", "right", "left"]
    assert [row.full_name for row in rows] == ["the left one", "the right one", "the left one"]
    assert [row.memory_nbytes for row in rows] == [2_000, 1_000, 2_000], "of one device, a share"


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
def test_what_a_device_does_not_obey_it_refuses_by_name(name: str) -> None:
    with pytest.raises(UnknownPropertyError, match=f"no property '{name}' on DENSE"):
        DensePlugin().set_property({name: 1})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num_streams", "did you mean NUM_STREAMS?"),
        ("Cache_Dir", "did you mean CACHE_DIR?"),
        ("PERF_COUNTS", "did you mean PERF_COUNT?"),
        (7, "There are CACHE_DIR, "),
    ],
)
def test_unknown_names_get_a_suggestion_or_else_what_can_be_set(name: Any, words: str) -> None:
    with pytest.raises(UnknownPropertyError) as caught:
        DensePlugin().set_property({name: 1})
    assert str(caught.value).startswith(f"no property {name!r} on DENSE")
    assert words in str(caught.value)
    assert "FULL_DEVICE_NAME" not in str(caught.value), "it cannot be set"


@pytest.mark.parametrize("config", ["LATENCY", ["PERF_COUNT"], 3])
def test_options_that_are_no_mapping_are_a_type_error(config: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="wanted a mapping of names to values"):
        DensePlugin().compile_model(DOUBLE, config)


def test_elements_of_a_list_are_checked_each() -> None:
    listed = Property("MODES", tuple, (), True, "Which.", choices=("FAST", "EXACT"))
    assert listed.parse("FAST, EXACT") == ("FAST", "EXACT")
    with pytest.raises(PropertyError, match=r"valid values are 'FAST', 'EXACT'"):
        listed.parse("FAST, SLOW")


def test_a_table_travels_without_its_plugins_code() -> None:
    table = PropertyTable(
        Property("SIZE", int, 1, True, "How large.", minimum=1, check=lambda size: "too large")
    )
    again = pickle.loads(pickle.dumps(table))
    assert Configuration(again, "there").parse({"SIZE": "2"}) == {"SIZE": 2}
    with pytest.raises(PropertyError, match="there: SIZE=0: wanted a number >= 1"):
        Configuration(again, "there").parse({"SIZE": 0})


def test_what_is_set_or_read_is_the_configurations_own() -> None:
    sizes = {"a": 1}
    table = PropertyTable(Property("SIZES", dict, {}, True, "How large."))
    configuration = Configuration(table, "here")
    configuration.set({"SIZES": sizes})
    sizes["a"] = 2
    configuration.get("SIZES")["b"] = 3
    assert configuration.get("SIZES") == {"a": 1}
    Configuration(table, "there").get("SIZES")["b"] = 3
    assert Configuration(table, "there").get("SIZES") == {}


def test_values_of_one_call_are_set_together() -> None:
    table = PropertyTable(*(Property(n, int, 0, True, "A number.") for n in ("A", "B")))
    configuration = Configuration(table, "here")
    torn = []

    def write() -> None:
        for number in range(2_000):
            configuration.set({"A": number, "B": number})

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found = configuration.effective()
        torn += [found] * (found["A"] != found["B"])
    assert not torn


def test_imported_weights_are_read_where_mapping_is_off(tmp_path) -> None:
    kept = []

    class Importing(DensePlugin):
        def load(self, payload, model, config):
            kept.append(payload.tensors["w"])
            return super().compile(DOUBLE, config)

    path = tmp_path / "w"
    np.arange(4.0).tofile(path)
    mapped = np.memmap(path, np.float64, "r")
    plugin = Importing()
    for enabled in (True, False):
        plugin.import_model(Payload({}, {"w": mapped}), DOUBLE, {"ENABLE_MMAP": enabled})
    assert [np.shares_memory(array, mapped) for array in kept] == [True, False]
    np.testing.assert_array_equal(kept[1], mapped)


@pytest.mark.parametrize("value", [2**53 + 1, str(2**53 + 1)])
def test_an_integer_that_no_float_equals_is_taken_as_it_is(value: Any) -> None:
    parsed = Property("BYTES", int, 0, True, "Bytes.").parse(value)
    assert parsed == 2**53 + 1
