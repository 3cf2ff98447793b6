"""Affinities stored in models: written, and read from ONNX and ONNX Runtime records."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
from onnx import helper

from hetero.affinity.affinity import Affinity
from hetero.affinity.metadata import annotate, metadata_pins
from hetero.affinity.pins import collect_pins
from hetero.devices.errors import AffinityError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from tests.support.graphs import proto, value

DEVICES = ("ORT", "CPU")


def test_annotate_writes_valid_onnx_and_reads_back(model):
    affinity = {"conv1": "ORT", "conv2": "CPU", "fc": "CPU", "out[0]": "ORT", "make_k": "ORT"}
    annotated = annotate(model, Affinity(affinity, {"fc": "pin: name fc"}), stages={"out[0]": 2})
    annotated_proto = annotated.to_proto()
    onnx.checker.check_model(annotated_proto, full_check=True)
    session = onnxruntime.InferenceSession(annotated.to_bytes(), providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == ["y"]
    assert [(c.name, c.num_devices, list(c.device)) for c in annotated_proto.configuration] == [
        ("hetero", 2, ["ORT", "CPU"])
    ]
    last = annotated_proto.graph.node[-1]
    assert {e.key: e.value for e in last.metadata_props} == {
        "hetero.affinity": "ORT",
        "hetero.device": "ORT",
        "hetero.subgraph": "2",
        "layer_ann": "ORT",
    }
    (record,) = last.device_configurations
    assert (record.configuration_id, record.pipeline_stage) == ("hetero", 2)
    assert [(s.tensor_name, list(s.device)) for s in record.sharding_spec] == [("y", [0])]
    read_back = read_model(annotated_proto)
    assert read_back.nodes[3].metadata["hetero.reason"] == "pin: name fc"
    del affinity["make_k"]  # it follows its reader
    assert dict(metadata_pins(read_back, DEVICES)) == affinity
    annotated_again = annotate(read_back, affinity)
    assert len(annotated_again.nodes[-1].proto.device_configurations) == 1
    assert len(annotated_again.header.configuration) == 1


def node_with(**metadata: str) -> onnx.NodeProto:
    node = helper.make_node("Abs", ["x"], ["y"], name="n")
    for key, text in metadata.items():
        node.metadata_props.add(key=key, value=text)
    return node


def model_with(node: onnx.NodeProto, *, devices: tuple[str, ...] = ()) -> Model:
    model_proto = proto([node], [value("x")], [value("y")])
    model_proto.ir_version = 11
    if devices:
        model_proto.configuration.add(name="two", num_devices=len(devices), device=devices)
    return read_model(model_proto)


def test_metadata_pins_layer_annotations():
    assert dict(metadata_pins(model_with(node_with(layer_ann="CPU")), DEVICES)) == {"n": "CPU"}
    assert dict(metadata_pins(model_with(node_with(layer_ann="encoder_1")), DEVICES)) == {}


def test_metadata_pins_pipeline_stage():
    node = node_with(layer_ann="ORT")
    node.device_configurations.add(configuration_id="two", pipeline_stage=1)
    assert dict(metadata_pins(model_with(node, devices=("ORT", "CPU")), DEVICES)) == {"n": "CPU"}
    # Unknown devices and stages in other tools' records are ignored.
    assert dict(metadata_pins(model_with(node, devices=("cuda:0", "cuda:1")), DEVICES)) == {
        "n": "ORT"
    }
    assert dict(metadata_pins(model_with(node, devices=("CPU",)), DEVICES)) == {"n": "ORT"}


def test_metadata_pins_sharded_tensor_is_ignored():
    node = node_with()
    record = node.device_configurations.add(configuration_id="two", pipeline_stage=0)
    record.sharding_spec.add(tensor_name="y", device=[0, 1])
    assert dict(metadata_pins(model_with(node, devices=DEVICES), DEVICES)) == {}
    record.sharding_spec[0].device[:] = [1]
    assert dict(metadata_pins(model_with(node, devices=DEVICES), DEVICES)) == {"n": "CPU"}


def test_collect_pins_metadata_for_unlisted_device():
    node = node_with()
    node.metadata_props.add(key="hetero.affinity", value="GPU")
    with pytest.raises(AffinityError, match=r"in metadata hetero\.affinity: no device 'GPU'"):
        collect_pins(model_with(node), DEVICES, None)
    assert dict(collect_pins(model_with(node), ("CPU",), None)) == {}


def test_affinity_of_runtime_information_precedes_metadata():
    model = model_with(node_with(**{"hetero.affinity": "CPU"}))
    for op in model.get_ops():
        op.get_rt_info()["affinity"] = "ORT"
    pins = collect_pins(model, DEVICES, None)
    assert dict(pins) == {"n": "ORT"}
    assert pins.reasons["n"] == "pin: name n in rt_info affinity"
    assert dict(collect_pins(model, DEVICES, {"n": "CPU"})) == {"n": "CPU"}
    assert not collect_pins(model, ("CPU",), None)


@pytest.mark.parametrize("device", ["GPU", 3])
def test_affinity_of_runtime_information_names_a_listed_device(device):
    model = model_with(node_with())
    model.get_ops()[0].rt_info["affinity"] = device
    with pytest.raises(AffinityError, match=rf"rt_info affinity.*{device}"):
        collect_pins(model, DEVICES, None)
