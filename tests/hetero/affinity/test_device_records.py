"""ONNX's device records with unusual indices, names and precedence."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from hetero.affinity.affinity import Affinity
from hetero.affinity.metadata import annotate, metadata_pins
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from tests.support.graphs import build, proto, value
from tests.support.rows import for_each_row

DEVICES = ("ORT", "CPU")


def recorded(
    *records: dict[str, Any], devices: tuple[str, ...] = DEVICES, **metadata: str
) -> Model:
    """Return a model of one node with these records: the indices of its tensors, and its stage."""
    node = helper.make_node("Abs", ["x"], ["y"], name="n")
    for record in records:
        entry = node.device_configurations.add(configuration_id=record.get("id", "two"))
        if "stage" in record:
            entry.pipeline_stage = record["stage"]
        for indices in record.get("tensors", ()):
            entry.sharding_spec.add(tensor_name="y", device=indices)
    for key, text in metadata.items():
        node.metadata_props.add(key=key.replace("_", ".", 1), value=text)
    model = proto([node], [value("x")], [value("y")])
    model.ir_version = 11
    model.configuration.add(name="two", num_devices=len(devices), device=devices)
    return read_model(model)


@for_each_row(
    "records, device",
    [
        ([{"tensors": [[0]]}], "ORT"),
        ([{"tensors": [[1]]}], "CPU"),
        ([{"tensors": [[1], [1]]}], "CPU"),
        ([{"tensors": [[1, 1]]}], "CPU"),
        ([{"tensors": [[0], [1]]}], None),
        ([{"tensors": [[-1]]}], None),  # not the last device
        ([{"tensors": [[-2]]}], None),
        ([{"tensors": [[2]]}], None),
        ([{"tensors": [[-1, 1]]}], None),
        ([{"tensors": [[1, 2]]}], None),
        ([{"stage": 0}], "ORT"),
        ([{"stage": 1}], "CPU"),
        ([{"stage": -1}], None),
        ([{"stage": 2}], None),
        ([{"stage": 0, "tensors": [[1]]}], "CPU"),  # the tensors take precedence
        ([{"stage": 1, "tensors": [[]]}], "CPU"),
        ([{}], None),
        ([{"id": "other", "stage": 1}], None),
        ([{"id": "other", "stage": 0}, {"stage": 1}], "CPU"),
        ([{"stage": 1}, {"stage": 0}], "CPU"),
        ([{"tensors": [[0, 1]]}, {"stage": 1}], "CPU"),
    ],
)
def test_device_of_records(records, device):
    pins = metadata_pins(recorded(*records), DEVICES)
    assert dict(pins) == ({"n": device} if device else {})
    assert pins.reasons == ({"n": "pin: device_configurations"} if device else {})


def test_records_of_devices_outside_the_list_are_skipped():
    model = recorded({"stage": 0}, {"stage": 1}, devices=("CUDA", "CPU"))
    assert dict(metadata_pins(model, DEVICES)) == {"n": "CPU"}


def test_precedence_of_the_three_forms():
    record = {"stage": 0}
    all_forms = recorded(record, hetero_affinity="CPU", layer_ann="CPU")
    assert dict(metadata_pins(all_forms, DEVICES)) == {"n": "CPU"}
    two_forms = recorded(record)
    two_forms.nodes[0].proto.metadata_props.add(key="layer_ann", value="CPU")
    assert dict(metadata_pins(two_forms, DEVICES)) == {"n": "ORT"}


def test_annotation_keeps_records_of_other_tools():
    model = recorded({"stage": 1})
    model.header.ir_version = 10
    annotated = annotate(model, Affinity({"n": "CPU"}, {}))
    assert annotated.header.ir_version == 11
    assert model.header.ir_version == 10
    assert [c.name for c in annotated.header.configuration] == ["two", "hetero"]
    ids = [r.configuration_id for r in annotated.nodes[0].proto.device_configurations]
    assert ids == ["two", "hetero"]
    newer = read_model(annotated.to_proto())
    newer.header.ir_version = 12
    assert annotate(newer, {"n": "CPU"}).header.ir_version == 12


def test_stages_are_device_indices_unless_given():
    model = build("a: v = Neg(x)\nb: w = Neg(v)\nc: y = Neg(w)", outputs="y")
    affinity = {"a": "ORT", "b": "CPU", "c": "ORT"}

    def stages(**options: Any) -> list[tuple[int, str | None]]:
        nodes = annotate(model, affinity, **options).nodes
        return [
            (n.proto.device_configurations[0].pipeline_stage, n.metadata.get("hetero.subgraph"))
            for n in nodes
        ]

    assert stages() == [(0, None), (1, None), (0, None)]
    assert stages(stages={"a": 5, "c": 7}) == [(5, "5"), (1, None), (7, "7")]


def test_nodes_without_affinity_stay_as_they_are():
    model = build("a: v = Neg(x)\nb: y = Neg(v)", outputs="y")
    annotated = annotate(model, {"b": "CPU"})
    assert annotated.nodes[0] is model.nodes[0]
    assert annotated.nodes[1].metadata["hetero.device"] == "CPU"
    onnx.checker.check_model(annotated.to_proto())
