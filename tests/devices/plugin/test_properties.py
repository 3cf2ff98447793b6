"""Values of properties: conversions, ranges, choices and their combinations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import PropertyError, UnknownPropertyError
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Property,
    PropertyTable,
)
from hetero.devices.plugin.properties import unknown_property as unknown
from tests.support.rows import for_each_row


def make(kind: type, **options: Any) -> Property:
    return Property("NAME", kind, "default", True, "The doc.", **options)


@for_each_row(
    "kind, value, parsed",
    [
        *((bool, text, True) for text in (True, "YES", "yes", "True", "1", 1)),
        *((bool, text, False) for text in (False, "NO", "no", "FALSE", "0", 0)),
        *((int, value, 3) for value in (3, "3", 3.0, np.int64(3))),
        *((float, value, 2.5) for value in (2.5, "2.5", np.float32(2.5))),
        (float, 2, 2.0),
        *((tuple, v, ("a", "b")) for v in ("a, b", "a b", "a,b", ["a", "b"], ("a", "b"))),
        (tuple, "", ()),
        (tuple, {"a"}, ("a",)),
        (tuple, frozenset("a"), ("a",)),
        (dict, {"a": 1}, {"a": 1}),
        (dict, '{"a": [1]}', {"a": [1]}),
        (str, "text", "text"),
        (str, Path("a/b"), "a/b"),
    ],
)
def test_value_is_converted(kind, value, parsed):
    result = make(kind).parse(value)
    assert result == parsed
    assert type(result) is kind


@for_each_row(
    "kind, value, expected",
    [
        (bool, "maybe", "YES or NO"),
        (bool, 2, "YES or NO"),
        *((int, value, "an integer") for value in (2.5, "2.5", True, None, "x", math.inf, [1])),
        *((float, v, "a finite number") for v in ("x", False, None, math.nan, "inf", -math.inf)),
        *((tuple, value, "a list") for value in (3, None, {"a": 1})),
        *((dict, value, "a mapping") for value in ("[1]", "{", 3, ["a"], None)),
        *((str, value, "text") for value in (3, None, True, ["a"])),
    ],
)
def test_value_of_another_type(kind, value, expected):
    with pytest.raises(PropertyError) as caught:
        make(kind).parse(value)
    assert f"NAME={value!r}: expected {expected}" in str(caught.value)
    assert f"got {type(value).__name__}. The doc." in str(caught.value)
    assert caught.value.property == "NAME"


@pytest.mark.parametrize(
    ("options", "valid", "invalid", "message"),
    [
        ({"minimum": 2}, [2, 3, 10**9], [1, -5], "expected a number >= 2."),
        ({"minimum": 0, "maximum": 5}, [0, 5], [-1, 6], "expected a number >= 0 and <= 5"),
        ({"choices": (1, 4)}, [1, 4], [2], "expected one of 1, 4"),
        ({"check": lambda v: "too odd" if v % 2 else None}, [2], [3], "too odd"),
    ],
)
def test_number_in_its_range(options, valid, invalid, message):
    parse = make(int, **options).parse
    assert [parse(value) for value in valid] == valid
    for value in invalid:
        with pytest.raises(PropertyError, match=f"NAME={value}: {message}") as caught:
            parse(value)
        assert caught.value.property == "NAME"


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        ({"a": 2, "b": 3}, True),
        ({}, True),
        ({"a": 2, "b": 1}, False),
        ({"a": "2"}, False),
        ({"a": math.inf}, False),
    ],
)
def test_range_applies_to_each_value_of_a_mapping(value, valid):
    parse = make(dict, minimum=2).parse
    if valid:
        assert parse(value) == value
        return
    with pytest.raises(PropertyError, match="expected numbers >= 2"):
        parse(value)


def test_choices_ignore_case_and_apply_to_each_value():
    assert make(str, choices=("FAST", "exact")).parse("Exact") == "exact"
    assert make(str, choices=("YES", "NO", "AUTO")).parse(True) == "YES"
    assert make(str, choices=("YES", "NO", "AUTO")).parse(False) == "NO"
    assert make(dict, choices=(1, 2)).parse({"a": 2}) == {"a": 2}
    for kind, value in ((str, "slow"), (tuple, ["FAST", "slow"]), (dict, {"a": "slow"})):
        with pytest.raises(PropertyError, match="expected one of 'FAST', 'exact'"):
            make(kind, choices=("FAST", "exact")).parse(value)


def test_pattern_matches_the_whole_text():
    parse = make(str, pattern="a+b").parse
    assert parse("aab") == "aab"
    for text in ("aabc", "xab", ""):
        with pytest.raises(PropertyError, match=r"expected text that matches a\+b"):
            parse(text)


@pytest.mark.parametrize("value", [-1, "AUTO", "-1"])
def test_automatic_value_selects_the_default(value):
    row = Property("N", int, 7, True, "Doc.", minimum=1, auto_values=(-1, "AUTO", "-1"))
    assert row.parse(value) == 7
    assert row.parse(2) == 2
    with pytest.raises(PropertyError):
        row.parse([-1])


def test_mapping_is_a_copy():
    value = {"a": [1]}
    parsed = make(dict).parse(value)
    value["a"].append(2)
    assert parsed == {"a": [1]}


TABLE = PropertyTable(
    Property("A", int, 1, True, "A.", shapes_result=True),
    Property("B", int, 2, False, "B.", shapes_result=True),
    Property("C", int, 3, True, "C."),
)


def test_table():
    assert list(TABLE) == ["A", "B", "C"]
    assert len(TABLE) == 3
    assert TABLE.mutable == ("A", "C")
    assert TABLE.mutability == {"A": "RW", "B": "RO", "C": "RW"}
    assert TABLE.caching_properties == ("A", "B")
    assert TABLE.key({"C": 9, "B": 8, "A": 7, "Z": 6}) == {"A": 7, "B": 8}
    assert list(TABLE.key({"B": 8, "A": 7})) == ["A", "B"]
    other = TABLE.extended(Property("A", int, 5, True, "A."), Property("D", int, 6, True, "D."))
    assert ({n: p.default for n, p in other.items()}) == {"A": 5, "B": 2, "C": 3, "D": 6}
    assert list(TABLE.without("A", "Z")) == ["B", "C"]
    assert TABLE["A"].default == 1


@for_each_row(
    "name, default, is_mutable",
    [
        ("DEVICE_ID", "0", True),
        ("PERF_COUNT", False, True),
        ("NUM_STREAMS", 1, True),
        ("EXCLUSIVE_ASYNC_REQUESTS", False, True),
        ("CACHE_DIR", "", True),
        ("ENABLE_MMAP", True, True),
        ("SUPPORTED_PROPERTIES", (), False),
        ("CACHING_PROPERTIES", (), False),
        ("AVAILABLE_DEVICES", ("0",), False),
        ("FULL_DEVICE_NAME", "", False),
        ("DEVICE_ARCHITECTURE", "", False),
        ("DEVICE_TYPE", "INTEGRATED", False),
        ("OPTIMIZATION_CAPABILITIES", ("FP32",), False),
        ("RANGE_FOR_STREAMS", (1, 1024), False),
        ("RANGE_FOR_ASYNC_INFER_REQUESTS", (1, 1, 1), False),
        ("EXECUTION_DEVICES", (), False),
        ("NETWORK_NAME", "", False),
        ("LOADED_FROM_CACHE", False, False),
        ("RUNTIME_REQUIREMENTS", "", False),
        ("COMPATIBILITY_CHECK", "NOT_APPLICABLE", False),
        ("OPTIMAL_NUMBER_OF_INFER_REQUESTS", 1, False),
        ("INFERENCE_NUM_THREADS", 0, True),
        ("DISABLE_TRANSFORMATIONS", False, True),
    ],
)
def test_standard_property(name, default, is_mutable):
    table = COMMON_PROPERTIES.extended(*OPTIONAL_PROPERTIES.values())
    standard = table[name]
    assert (standard.default, standard.mutable) == (default, is_mutable)
    assert type(default) is standard.type
    assert (name in table.caching_properties) == (name == "DISABLE_TRANSFORMATIONS")
    assert len(table) == 23


def test_set_values_override_the_device_and_options_override_both():
    reads: list[tuple[str, str]] = []

    def read(name: str, device_id: str) -> int:
        reads.append((name, device_id))
        return 50

    checked: list[Any] = []
    configuration = Configuration(TABLE, "owner", {"C": 30}, read=read, check=checked.append)
    assert (configuration.get("A", "1"), configuration.get("C", "1")) == (50, 30)
    assert reads == [("A", "1")]
    assert configuration.effective({"C": "4"}) == {"A": 50, "C": 4}
    assert configuration.effective() == {"A": 50, "C": 30}
    assert reads[1:] == [("A", ""), ("A", "")]
    configuration.set({"A": 5})
    configuration.set({"C": 6})
    assert configuration.values == {"A": 5, "C": 6}
    assert checked == [{"C": 4}, {}, {"A": 5}, {"C": 6}]
    configuration.values["A"] = 9
    assert configuration.get("A") == 5
    with pytest.raises(UnknownPropertyError) as caught:
        configuration.get("Z")
    assert caught.value.property == "Z"
    assert "on owner" in str(caught.value)


def test_check_of_a_configuration_rejects_all_values():
    def check(values: Any) -> None:
        raise PropertyError("together impossible", property="A")

    configuration = Configuration(TABLE, "owner", check=check)
    with pytest.raises(PropertyError, match="together impossible"):
        configuration.set({"A": 5})
    assert configuration.values == {}


def test_unknown_property_suggests_similar_names_or_lists_all():
    names = ["CACHE_DIR", "CACHE_SIZE", "PERF_COUNT"]
    similar = unknown("CACHE_DIRS", "X", names)
    assert "Did you mean CACHE_DIR or CACHE_SIZE?" in str(similar)
    assert str(unknown("cache_dir", "X", names)).endswith("Did you mean CACHE_DIR?")
    assert str(unknown("Q", "X", reversed(names))).endswith("Expected " + ", ".join(names) + ".")
    assert similar.property == "CACHE_DIRS"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("supported_metrics", "SUPPORTED_PROPERTIES"),
        ("SUPPORTED_CONFIG_KEYS", "SUPPORTED_PROPERTIES"),
        ("IMPORT_EXPORT_SUPPORT", "OPTIMIZATION_CAPABILITIES, which contains EXPORT_IMPORT,"),
        ("CPU_THREADS_NUM", "INFERENCE_NUM_THREADS"),
        ("GPU_THROUGHPUT_STREAMS", "NUM_STREAMS"),
        ("DYN_BATCH_LIMIT", "AUTO_BATCH_SIZE"),
    ],
)
def test_property_of_openvinos_first_api_names_its_successor(name, fix):
    error = unknown(name, "device X", [])
    assert str(error) == (
        f"no property {name!r} on device X: it belongs to OpenVINO's first API. Use {fix} instead."
    )
    assert error.property == name


@pytest.mark.parametrize("value", [1, 1024, "AUTO", "NUMA", -1, -2])
def test_streams_of_a_device(value):
    row = COMMON_PROPERTIES["NUM_STREAMS"]
    assert row.parse(value) == (value if isinstance(value, int) and value > 0 else 1)
    for invalid in (0, 1025, -3):
        with pytest.raises(PropertyError):
            row.parse(invalid)
