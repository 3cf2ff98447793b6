"""Sources of pins, and the precedence and messages of their patterns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetero.affinity.affinity import NO_PINS, Affinity, abbreviate, assign, resolve_pins
from hetero.affinity.metadata import annotate
from hetero.affinity.pins import collect_pins, load_affinity, parse_pins
from hetero.devices.errors import AffinityError, ArgumentTypeError
from hetero.devices.plugin.support import Refusal, Support

DEVICES = ("ORT", "CPU")


# Patterns.


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"conv1": "CPU", "conv*": "ORT"}, {"conv1": "CPU", "conv2": "ORT"}),
        ({"conv*": "ORT", "op:Add": "CPU"}, {"conv1": "ORT", "conv2": "ORT"}),
        ({"op:Add": "CPU", "conv1": "ORT"}, {"conv1": "ORT"}),
        ({"op:A*": "ORT", "op:Add": "CPU"}, {"conv1": "CPU", "conv2": "ORT", "out[0]": "ORT"}),
        ({"op:ai.onnx.Neg": "CPU"}, {"fc": "CPU"}),
        ({"out[0]": "CPU"}, {"out[0]": "CPU"}),  # a name, not a glob
        ({"glob:conv[2]": "CPU"}, {"conv2": "CPU"}),
        ({"name:fc": "CPU"}, {"fc": "CPU"}),
        ({"make_k": "CPU", "fc": "CPU"}, {"fc": "CPU"}),  # literals follow their readers
        ({"f?": "CPU"}, {"fc": "CPU"}),
    ],
)
def test_precedence_of_patterns(pins, expected, model):
    assert dict(resolve_pins(model, pins, DEVICES)) == expected


def test_reasons_contain_the_kind_and_the_source(model):
    patterns = {"conv1": "CPU", "conv2*": "CPU", "op:Neg": "CPU"}
    assert resolve_pins(model, patterns).reasons == {
        "conv1": "pin: name conv1",
        "conv2": "pin: glob conv2*",
        "fc": "pin: op:Neg",
    }
    assert resolve_pins(model, {"fc": "X"}, source="a.yaml").reasons == {
        "fc": "pin: name fc in a.yaml"
    }


def test_all_problems_are_listed_with_their_source(model):
    pins: Any = {
        "fc": "",
        "conv1": 3,
        "conv2": "ORTS",
        "conv": "CPU",
        "zzz": "CPU",
        "z*": "CPU",
        "op:Nex": "CPU",
        "op:Q": "CPU",
    }
    with pytest.raises(AffinityError) as caught:
        resolve_pins(model, pins, DEVICES, source="f")
    names = "'make_k', 'conv1', 'conv2', 'fc', 'out[0]'"
    assert caught.value.data["problems"] == (
        "pin 'fc' in f: '' is not a device name",
        "pin 'conv1' in f: 3 is not a device name",
        "pin 'conv2' in f: no device 'ORTS' in the list (ORT, CPU); did you mean 'ORT'?",
        "pin 'conv' in f: no node has that name; close matches: 'conv2', 'conv1'",
        f"pin 'zzz' in f: no node has that name; the model has {names}",
        f"pin 'z*' in f: no node name matches; the model has {names}",
        "pin 'op:Nex' in f: no node is of type 'Nex'; close matches: 'Neg'",
        "pin 'op:Q' in f: no node is of type 'Q'; the model has 'Constant', 'Add', 'Abs', 'Neg'",
    )
    assert "model 'g': invalid pins (8):\n  pin 'fc'" in str(caught.value)


@pytest.mark.parametrize(
    ("count", "text"), [(2, "'0', '1'"), (3, "'0', '1', '2'"), (5, "'0', '1', '2' and 2 more")]
)
def test_long_lists_are_abbreviated(count, text):
    assert abbreviate([str(i) for i in range(count)], 3) == text


def test_device_names_need_no_list(model):
    assert dict(resolve_pins(model, {"fc": "any"})) == {"fc": "any"}


# Affinities.


def test_affinity_is_a_mapping():
    affinity = Affinity({"a": "X", "b": "Y"}, {"a": "pin"})
    assert (len(affinity), list(affinity), affinity["b"]) == (2, ["a", "b"], "Y")
    assert hash(affinity) == hash(Affinity({"a": "X", "b": "Y"}))
    assert hash(affinity) != hash(Affinity({"a": "X"}))
    assert len(NO_PINS) == 0
    union = affinity.with_fallback(Affinity({"b": "Z", "c": "Z"}, {"a": "old", "c": "c"}))
    assert union == Affinity({"b": "Y", "c": "Z", "a": "X"}, {"a": "pin", "c": "c"})


def test_assignment_explains_each_device(model):
    refusals = {"fc": {"ORT": Refusal("opset", "old")}}
    devices = {"make_k": "ORT", "conv1": "ORT", "conv2": "ORT", "fc": "CPU", "out[0]": "CPU"}
    pins = Affinity({"conv2": "ORT"}, {"conv2": "pin: name conv2"})
    affinity = assign(model, Support(devices, {}, refusals), pins)
    assert affinity.devices == devices
    assert affinity.reasons == {
        "make_k": "follows conv1",
        "conv1": "priority",
        "conv2": "pin: name conv2",
        "fc": "priority, after ORT: old [opset]",
        "out[0]": "priority",
    }
    missing = {n: d for n, d in devices.items() if n not in ("fc", "conv1")}
    assert assign(model, Support(missing)).keys() == {"conv2", "out[0]"}
    with pytest.raises(AffinityError) as caught:
        assign(model, Support(devices, {}, refusals), Affinity({"fc": "ORT", "conv1": "CPU"}))
    assert caught.value.data["problems"] == (
        "node 'fc' (Neg): ORT does not support it: old [opset] (pin)",
        "node 'conv1' (Add): CPU was not queried about it (pin)",
    )


# Sources.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"fc": "CPU", "op:Add": "ORT"}'),
        ("a.json", '{"affinity": {"fc": "CPU", "op:Add": "ORT"}}'),
        ("a.yaml", "fc: CPU\nop:Add: ORT\n"),
        ("a.yaml", "affinity:\n  fc: CPU\n  op:Add: ORT\n"),
    ],
)
def test_each_form_of_a_source_gives_the_same_pins(name, text, tmp_path, model):
    path = tmp_path / name
    path.write_text(text)
    expected = {"conv1": "ORT", "fc": "CPU"}
    sources: list[Any] = [
        path,
        str(path),
        [str(path)],
        ["fc=CPU", "op:Add=ORT"],
        load_affinity(path),
    ]
    for source in sources:
        assert dict(collect_pins(model, DEVICES, source)) == expected
    assert dict(collect_pins(model, DEVICES, "fc=CPU")) == {"fc": "CPU"}
    assert collect_pins(model, DEVICES, path).reasons["fc"] == f"pin: name fc in {path}"
    assert collect_pins(model, DEVICES, ["fc=CPU"]).reasons["fc"] == "pin: name fc"
    for nothing in (None, [], {}):
        assert dict(collect_pins(model, DEVICES, nothing)) == {}


def test_file_whose_name_has_an_equals_sign(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a=b.yaml").write_text("fc: CPU")
    assert dict(collect_pins(model, DEVICES, "a=b.yaml")) == {"fc": "CPU"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"other": {"fc": "CPU"}}', "pattern 'other': expected a device name"),
        ("a.yaml", "other:\n  fc: CPU\n", "pattern 'other': expected a device name, got map"),
        ("a.json", '{"affinity": "CPU", "fc": ""}', "pattern 'fc': expected a device name, got ''"),
        ("a.json", '{"fc": "CPU",\n"fc": "ORT"}', "a.json:2: pattern 'fc' occurs twice"),
        ("a.yaml", "fc: CPU\nfc: ORT\n", "a.yaml:2: pattern 'fc' occurs twice"),
        ("a.yaml", "fc: 3\n", "a.yaml:1: pattern 'fc': expected a device name, got int"),
        ("a.yaml", "- fc\n", "expected {pattern: device}"),
        ("a.json", '["fc"]', "a.json:1: expected {pattern: device}, got list"),
        ("a.yaml", "\n? [fc]\n: CPU\n", "a.yaml:2: expected a pattern"),
    ],
)
def test_damaged_file_with_its_line(name, text, message, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(AffinityError) as caught:
        load_affinity(path)
    assert message in str(caught.value)


def test_file_with_the_pattern_affinity_beside_others(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"affinity": "CPU"}))
    assert load_affinity(path) == {"affinity": "CPU"}
    (tmp_path / "a.yaml").write_text("affinity: CPU\nfc: ORT\n")
    assert load_affinity(tmp_path / "a.yaml") == {"affinity": "CPU", "fc": "ORT"}


@pytest.mark.parametrize(
    ("text", "hint"), [("none.yaml", "no such file none.yaml; "), ("=CPU", ""), ("fc=", "")]
)
def test_pin_of_the_command_line_that_is_incomplete(text, hint):
    with pytest.raises(AffinityError) as caught:
        parse_pins([text])
    assert f"affinity {text!r}: {hint}expected PATTERN=DEVICE" in str(caught.value)


@pytest.mark.parametrize("source", [3, [3], [None]])
def test_source_of_another_type(source, model):
    with pytest.raises(ArgumentTypeError, match="affinity: expected"):
        collect_pins(model, DEVICES, source)


def test_later_pin_of_the_command_line_wins():
    assert list(parse_pins(["a = X", "b=Y", "a=Z"]).items()) == [("b", "Y"), ("a", "Z")]
    assert parse_pins(["a=b=X"]) == {"a=b": "X"}


def test_metadata_counts_for_several_devices_alone(model):
    annotated = annotate(model, {"fc": "CPU", "conv1": "ORT"})
    assert dict(collect_pins(annotated, DEVICES, None)) == {"fc": "CPU", "conv1": "ORT"}
    assert dict(collect_pins(annotated, ["ORT"], None)) == {}
    assert dict(collect_pins(annotated, DEVICES, {"fc": "ORT"})) == {"fc": "ORT", "conv1": "ORT"}
