"""Pins: patterns, files, command lines, metadata, and how they are told apart and put together."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import helper

from hetero.affinity.affinity import Affinity, assign, resolve_pins
from hetero.affinity.metadata import annotate, metadata_pins
from hetero.affinity.pins import load_affinity, parse_pins, pins_of
from hetero.devices.errors import AffinityError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.support import Refusal, Support
from tests.support.graphs import build, proto, value

DEVICES = ("ORT", "CPU")


@pytest.fixture
def model() -> Model:
    return build(
        """conv1: a = Add(x, k)
           conv2: b = Abs(a)
           fc: c = Neg(b)
           out[0]: y = Abs(c)""",
        outputs="y",
        literals="k",
    )


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"fc": "CPU"}, {"fc": "CPU"}),
        ({"conv*": "CPU"}, {"conv1": "CPU", "conv2": "CPU"}),
        ({"conv?": "CPU"}, {"conv1": "CPU", "conv2": "CPU"}),
        ({"conv[2-9]": "CPU"}, {"conv2": "CPU"}),
        ({"op:Abs": "CPU"}, {"conv2": "CPU", "out[0]": "CPU"}),
        ({"op:ai.onnx.Neg": "CPU"}, {"fc": "CPU"}),
        ({"op:A*": "CPU"}, {"conv1": "CPU", "conv2": "CPU", "out[0]": "CPU"}),
        ({"out[0]": "CPU"}, {"out[0]": "CPU"}),  # a name before a glob
        ({"name:fc": "CPU", "glob:out*": "ORT"}, {"fc": "CPU", "out[0]": "ORT"}),
        # The more exact kind wins wherever it stands, the later one within a kind.
        (
            {"conv2": "ORT", "conv*": "CPU", "op:Abs": "CPU"},
            {"conv1": "CPU", "conv2": "ORT", "out[0]": "CPU"},
        ),
        ({"conv*": "CPU", "c*": "ORT"}, {"conv1": "ORT", "conv2": "ORT"}),
        ({"op:Constant": "CPU"}, {}),  # literals follow their readers
        ({"fc": "CPU.0"}, {"fc": "CPU"}),
    ],
)
def test_patterns(model: Model, pins: dict[str, str], expected: dict[str, str]) -> None:
    assert dict(resolve_pins(model, pins, DEVICES)) == expected


def test_reasons_say_which_pattern(model: Model) -> None:
    pins = {"fc": "CPU", "conv*": "CPU", "op:Abs": "ORT"}
    found = resolve_pins(model, pins, DEVICES, source="a.json")
    assert found.reasons == {
        "conv1": "pin: glob conv* in a.json",
        "conv2": "pin: glob conv* in a.json",
        "fc": "pin: name fc in a.json",
        "out[0]": "pin: op:Abs in a.json",
    }


def test_all_problems_are_in_one_error(model: Model) -> None:
    pins = {"conv3": "CPU", "op:Conv": "CPU", "dense*": "CPU", "fc": "GPU", "conv1": "cpu"}
    with pytest.raises(AffinityError) as caught:
        resolve_pins(model, pins, DEVICES)
    problems = caught.value.data["problems"]
    assert len(problems) == 5
    assert "no node has that name; close: 'conv" in problems[0]
    assert "no node is of type 'Conv'" in problems[1]
    assert "no node's name fits it" in problems[2]
    assert "no device 'GPU' in the list (ORT, CPU)" in problems[3]
    assert "did you mean 'CPU'?" in problems[4]
    assert all(problem in str(caught.value) for problem in problems)
    assert pickle.loads(pickle.dumps(caught.value)).data == caught.value.data


def test_assign_keeps_pins_and_says_why(model: Model) -> None:
    refused = {"conv2": {"ORT": Refusal("no_kernel", "ORT has no Abs")}}
    support = Support(
        {"make_k": "ORT", "conv1": "ORT", "conv2": "CPU", "fc": "CPU", "out[0]": "ORT"}, {}, refused
    )
    placed = assign(model, support, Affinity({"fc": "CPU"}, {"fc": "pin: name fc"}))
    assert dict(placed) == dict(support)
    assert tuple(placed) == model.node_names
    assert placed.reasons == {
        "make_k": "follows conv1",
        "conv1": "priority",
        "conv2": "priority, after ORT: ORT has no Abs [no_kernel]",
        "fc": "pin: name fc",
        "out[0]": "priority",
    }


def test_assign_refuses_pins_that_the_device_does_not_take(model: Model) -> None:
    refused = {"fc": {"ORT": Refusal("dtype", "no bfloat16")}}
    support = Support({"conv1": "ORT", "conv2": "CPU"}, refused, refused)
    pins = Affinity(
        {"fc": "ORT", "conv2": "ORT"}, {"fc": "pin: op:Neg", "conv2": "pin: name conv2"}
    )
    with pytest.raises(AffinityError) as caught:
        assign(model, support, pins)
    assert caught.value.data["problems"] == (
        "node 'fc' (Neg): ORT does not take it: no bfloat16 [dtype] (pin: op:Neg)",
        "node 'conv2' (Abs): ORT was not asked about it (pin: name conv2)",
    )


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
def test_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert list(load_affinity(tmp_path / name).items()) == [("conv*", "CPU"), ("op:Abs", "ORT")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"a": "CPU",\n "b": }', r"a\.json:2: not JSON: Expecting value"),
        (
            "a.json",
            '{"a": "CPU",\n "b": 3}',
            r"a\.json:2: pattern 'b': expected a device name, got 3",
        ),
        ("a.json", '{"a": "CPU",\n "a": "ORT"}', r"a\.json:\d: pattern 'a' is given twice"),
        ("a.json", "[1]", r"a\.json:1: expected \{pattern: device\}, got list"),
        ("a.yaml", "a: CPU\nb: [", r"a\.yaml:\d: not YAML"),
        ("a.yaml", "a: CPU\nb: 3\n", r"a\.yaml:2: pattern 'b': expected a device name, got int"),
        ("a.yaml", "a: CPU\nb:\n", r"a\.yaml:2: pattern 'b': expected a device name, got null"),
        ("a.yaml", "a: CPU\na: ORT\n", r"a\.yaml:2: pattern 'a' is given twice"),
        ("a.yaml", "- a\n", r"a\.yaml:1: expected \{pattern: device\}"),
        ("a.yaml", "!!python/object/apply:os.getcwd []: CPU\n", r"a\.yaml:1: expected a pattern"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(AffinityError, match=message):
        load_affinity(tmp_path / name)


def test_a_value_that_asks_for_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(AffinityError, match=r"a\.yaml:1: pattern 'a': expected a device name"):
        load_affinity(path)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(AffinityError, match="cannot be read"):
        load_affinity(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AffinityError, match="cannot be read"):
        load_affinity(tmp_path / "b.json")


def test_an_empty_file_pins_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    assert load_affinity(tmp_path / "a.yaml") == {}


def test_command_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"fc": "ORT"}))
    texts = ["op:Concat=CPU", "a=b=ORT", str(path), "op:Concat=ORT"]
    assert list(parse_pins(texts).items()) == [("a=b", "ORT"), ("fc", "ORT"), ("op:Concat", "ORT")]
    for wrong in ("conv1", "=CPU", "conv1="):
        with pytest.raises(AffinityError, match="expected PATTERN=DEVICE"):
            parse_pins([wrong])


def test_pins_win_over_metadata(tmp_path: Path, model: Model) -> None:
    noted = annotate(model, dict.fromkeys(["conv1", "conv2", "fc"], "ORT"))
    path = tmp_path / "a.yaml"
    path.write_text("op:Abs: CPU\nfc: CPU\n")
    assert dict(pins_of(noted, DEVICES, {"op:Neg": "ORT"})) == dict.fromkeys(
        ["conv1", "conv2", "fc"], "ORT"
    )
    pins = pins_of(noted, DEVICES, path)
    assert dict(pins) == {"conv1": "ORT", "conv2": "CPU", "fc": "CPU", "out[0]": "CPU"}
    path.write_text("fc: GPU\ngone: ORT\n")
    with pytest.raises(AffinityError) as caught:
        pins_of(noted, DEVICES, path)
    assert len(caught.value.data["problems"]) == 2


def test_annotation_is_valid_onnx_that_a_runtime_takes_and_reads_back(model: Model) -> None:
    affinity = {"conv1": "ORT", "conv2": "CPU", "fc": "CPU", "out[0]": "ORT", "make_k": "ORT"}
    noted = annotate(model, Affinity(affinity, {"fc": "pin: name fc"}), stages={"out[0]": 2})
    written = noted.to_proto()
    onnx.checker.check_model(written, full_check=True)
    session = onnxruntime.InferenceSession(noted.to_bytes(), providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == ["y"]
    assert [(c.name, c.num_devices, list(c.device)) for c in written.configuration] == [
        ("hetero", 2, ["ORT", "CPU"])
    ]
    last = written.graph.node[-1]
    assert {e.key: e.value for e in last.metadata_props} == {
        "hetero.affinity": "ORT",
        "hetero.device": "ORT",
        "hetero.subgraph": "2",
        "layer_ann": "ORT",
    }
    (record,) = last.device_configurations
    assert (record.configuration_id, record.pipeline_stage) == ("hetero", 2)
    assert [(s.tensor_name, list(s.device)) for s in record.sharding_spec] == [("y", [0])]
    again = read_model(written)
    assert again.nodes[3].metadata["hetero.reason"] == "pin: name fc"
    del affinity["make_k"]  # it follows its reader
    assert dict(metadata_pins(again, DEVICES)) == affinity
    twice = annotate(again, affinity)
    assert len(twice.nodes[-1].proto.device_configurations) == 1
    assert len(twice.header.configuration) == 1


def node_with(**metadata: str) -> onnx.NodeProto:
    node = helper.make_node("Abs", ["x"], ["y"], name="n")
    for key, text in metadata.items():
        node.metadata_props.add(key=key, value=text)
    return node


def whole(node: onnx.NodeProto, *, devices: tuple[str, ...] = ()) -> Model:
    made = proto([node], [value("x")], [value("y")])
    made.ir_version = 11
    if devices:
        made.configuration.add(name="two", num_devices=len(devices), device=devices)
    return read_model(made)


def test_layer_annotations_count_where_they_name_a_device() -> None:
    assert dict(metadata_pins(whole(node_with(layer_ann="CPU")), DEVICES)) == {"n": "CPU"}
    assert dict(metadata_pins(whole(node_with(layer_ann="encoder_1")), DEVICES)) == {}


def test_a_stage_is_a_place_in_the_configuration() -> None:
    node = node_with(layer_ann="ORT")
    node.device_configurations.add(configuration_id="two", pipeline_stage=1)
    assert dict(metadata_pins(whole(node, devices=("ORT", "CPU")), DEVICES)) == {"n": "CPU"}
    # Unknown devices and stages of others' records are passed over.
    assert dict(metadata_pins(whole(node, devices=("cuda:0", "cuda:1")), DEVICES)) == {"n": "ORT"}
    assert dict(metadata_pins(whole(node, devices=("CPU",)), DEVICES)) == {"n": "ORT"}


def test_a_tensor_on_several_devices_pins_nothing() -> None:
    node = node_with()
    record = node.device_configurations.add(configuration_id="two", pipeline_stage=0)
    record.sharding_spec.add(tensor_name="y", device=[0, 1])
    assert dict(metadata_pins(whole(node, devices=DEVICES), DEVICES)) == {}
    record.sharding_spec[0].device[:] = [1]
    assert dict(metadata_pins(whole(node, devices=DEVICES), DEVICES)) == {"n": "CPU"}


def test_our_own_metadata_must_be_met_unless_there_is_one_device() -> None:
    node = node_with()
    node.metadata_props.add(key="hetero.affinity", value="GPU")
    with pytest.raises(AffinityError, match=r"in metadata hetero\.affinity: no device 'GPU'"):
        pins_of(whole(node), DEVICES, None)
    assert dict(pins_of(whole(node), ("CPU",), None)) == {}
