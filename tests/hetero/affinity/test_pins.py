"""Pins from files, command lines and metadata, and their precedence."""

from __future__ import annotations

import json

import pytest

from hetero.affinity.metadata import annotate
from hetero.affinity.pins import collect_pins, load_affinity, parse_pins
from hetero.devices.errors import AffinityError

DEVICES = ("ORT", "CPU")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"conv*": "CPU", "op:Abs": "ORT"}'),
        ("a.json", '{"affinity": {"conv*": "CPU", "op:Abs": "ORT"}}'),
        ("a.yaml", "conv*: CPU\nop:Abs: ORT\n"),
        ("a.yml", "affinity:\n  'conv*': CPU\n  op:Abs: ORT\n"),
        ("a.txt", '{"conv*": "CPU", "op:Abs": "ORT"}'),
    ],
)
def test_load_affinity_json_and_yaml(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert list(load_affinity(tmp_path / name).items()) == [("conv*", "CPU"), ("op:Abs", "ORT")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"a": "CPU",\n "b": }', r"a\.json:2:7: not JSON: Expecting value"),
        (
            "a.json",
            '{"a": "CPU",\n "b": 3}',
            r"a\.json:2: pattern 'b': expected a device name, got 3",
        ),
        ("a.json", '{"a": "CPU",\n "a": "ORT"}', r"a\.json:\d: pattern 'a' occurs twice"),
        ("a.json", "[1]", r"a\.json:1: expected \{pattern: device\}, got list"),
        ("a.yaml", "a: CPU\nb: [", r"a\.yaml:2:5: not YAML"),
        ("a.yaml", "a: CPU\nb: 3\n", r"a\.yaml:2: pattern 'b': expected a device name, got int"),
        ("a.yaml", "a: CPU\nb:\n", r"a\.yaml:2: pattern 'b': expected a device name, got null"),
        ("a.yaml", "a: CPU\na: ORT\n", r"a\.yaml:2: pattern 'a' occurs twice"),
        ("a.yaml", "- a\n", r"a\.yaml:1: expected \{pattern: device\}"),
        ("a.yaml", "!!python/object/apply:os.getcwd []: CPU\n", r"a\.yaml:1: expected a pattern"),
    ],
)
def test_load_affinity_damaged_file_raises_with_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(AffinityError, match=message):
        load_affinity(tmp_path / name)


def test_load_affinity_yaml_code_tag_raises(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(AffinityError, match=r"a\.yaml:1: pattern 'a': expected a device name"):
        load_affinity(path)


def test_load_affinity_missing_or_binary_file_raises(tmp_path):
    with pytest.raises(AffinityError, match="cannot be read"):
        load_affinity(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AffinityError, match="cannot be read"):
        load_affinity(tmp_path / "b.json")


def test_load_affinity_empty_file(tmp_path):
    (tmp_path / "a.yaml").write_text("")
    assert load_affinity(tmp_path / "a.yaml") == {}


def test_parse_pins_command_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"fc": "ORT"}))
    texts = ["op:Concat=CPU", "a=b=ORT", str(path), "op:Concat=ORT"]
    assert list(parse_pins(texts).items()) == [("a=b", "ORT"), ("fc", "ORT"), ("op:Concat", "ORT")]
    for invalid in ("conv1", "=CPU", "conv1="):
        with pytest.raises(AffinityError, match="expected PATTERN=DEVICE"):
            parse_pins([invalid])


def test_collect_pins_override_metadata(tmp_path, model):
    annotated = annotate(model, dict.fromkeys(["conv1", "conv2", "fc"], "ORT"))
    path = tmp_path / "a.yaml"
    path.write_text("op:Abs: CPU\nfc: CPU\n")
    assert dict(collect_pins(annotated, DEVICES, {"op:Neg": "ORT"})) == dict.fromkeys(
        ["conv1", "conv2", "fc"], "ORT"
    )
    pins = collect_pins(annotated, DEVICES, path)
    assert dict(pins) == {"conv1": "ORT", "conv2": "CPU", "fc": "CPU", "out[0]": "CPU"}
    path.write_text("fc: GPU\nabsent: ORT\n")
    with pytest.raises(AffinityError) as error:
        collect_pins(annotated, DEVICES, path)
    assert len(error.value.data["problems"]) == 2
