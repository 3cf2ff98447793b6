"""Malicious blobs cannot read files, create folders or allocate excessive memory."""

import os
import struct

import msgpack
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import hetero
from hetero.cache import blob
from hetero.devices import load_plugins, read_model
from hetero.devices.errors import BlobError, ModelError, UnsupportedNodesError
from hetero.devices.plugin.program import Payload
from hetero.examples.custom_operator import fraction
from hetero.scheduler.formats.blob_format import FORMAT_VERSION, MAGIC, PREFIX, SUMMED_NBYTES
from hetero.scheduler.formats.blob_format import header_checksum as checksum_of
from hetero.scheduler.formats.weightless import MAGIC as WEIGHTLESS

MODEL = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y)
    <float[4] w = {1, 2, 3, 4}> { a = Add(x, w) y = Neg(a) }"""
)


def make_external(tensor, path):
    """Move the tensor's contents to an external file."""
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=path)


def add_initializer(graph, path):
    tensor = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "secret")
    make_external(tensor, path)
    graph.initializer.append(tensor)
    graph.node[-1].input[0] = "secret"


def add_constant_node(graph, path):
    tensor = onnx.numpy_helper.from_array(np.zeros(4, np.float32))
    make_external(tensor, path)
    graph.node.insert(0, onnx.helper.make_node("Constant", [], ["secret"], "c", value=tensor))
    graph.node[-1].input[0] = "secret"


@pytest.mark.parametrize("path", ["weights.bin", "../weights.bin"])
@pytest.mark.parametrize("add_tensor", [add_initializer, add_constant_node])
@pytest.mark.parametrize(("device", "key"), [("CPU", "graph"), ("ORT", "model")])
def test_payload_with_external_data_is_rejected(
    device, key, add_tensor, path, tmp_path, monkeypatch
):
    folder = tmp_path / "here"
    folder.mkdir()
    np.float32([7, 7, 7, 7]).tofile(tmp_path / "weights.bin")
    np.float32([7, 7, 7, 7]).tofile(folder / "weights.bin")
    monkeypatch.chdir(folder)
    plugin = load_plugins()[device].plugin
    if plugin is None:
        pytest.skip("needs pip install 'hetero[ort]'")
    compiled = plugin.compile_model(MODEL, {"DISABLE_TRANSFORMATIONS": True})
    payload = compiled.export_model()
    proto = onnx.ModelProto.FromString(payload.header[key])
    add_tensor(proto.graph, path)
    header = {**payload.header, key: proto.SerializeToString()}
    if "covers" in header:
        header["covers"] = {**header["covers"], "c": ["c"]}
    with pytest.raises(BlobError, match="external file"):
        plugin.import_model(Payload(header, payload.tensors), read_model(MODEL))


def test_source_with_external_data_is_rejected(tmp_path, monkeypatch):
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    split_model = blob.split_model

    def split_with_external_data(source):
        parts = split_model(source)
        skeleton = onnx.ModelProto.FromString(parts.skeleton)
        add_constant_node(skeleton.graph, "weights.bin")
        return parts._replace(skeleton=skeleton.SerializeToString())

    with hetero.Core(executor="inprocess") as core:
        monkeypatch.setattr(blob, "split_model", split_with_external_data)
        with core.compile_model(model, "HETERO:ORT,CPU") as compiled:
            data = compiled.export_model()
        np.float32([7, 7, 7, 7]).tofile(tmp_path / "weights.bin")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(BlobError, match="external file"):
            core.import_model(data, "CPU")


@pytest.mark.parametrize("in_device_options", [False, True])
def test_file_options_in_blob_are_ignored(in_device_options, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    file_options = {"CACHE_DIR": str(tmp_path / "created")}
    if not in_device_options:
        file_options |= {"COST_FILE": str(tmp_path / "pipe"), "MODEL_DISTRIBUTION_POLICY": "AUTO"}
    exported_options = blob._exported_options
    monkeypatch.setattr(
        blob,
        "_exported_options",
        lambda options: {
            **exported_options(options),
            **(file_options if ("COST_FILE" in options) is not in_device_options else {}),
        },
    )
    with hetero.Core(executor="inprocess") as core:
        with core.compile_model(MODEL, "HETERO:ORT,CPU", affinity={"y": "CPU"}) as compiled:
            data = compiled.export_model()
        with core.import_model(data, "CPU") as imported:
            np.testing.assert_array_equal(imported(np.zeros(4, np.float32))[0], [-1, -2, -3, -4])
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("nbytes", [6 * 10**9, 10**15])
def test_weightless_blob_with_excessive_size_is_rejected(nbytes):
    rows = struct.pack("<QQ16s", 64 * 4, nbytes - 64 * 4, b"0" * 16)
    header = msgpack.packb([rows, msgpack.packb({"kind": "model"})])
    prefix = PREFIX.pack(MAGIC, FORMAT_VERSION, 0, len(header), nbytes, b"")[:SUMMED_NBYTES]
    start = prefix + checksum_of(prefix, header) + header
    data = struct.pack("<8sQ", WEIGHTLESS, len(start)) + start + b"\x01"
    with (
        hetero.Core(executor="inprocess") as core,
        pytest.raises(BlobError, match="truncated or damaged"),
    ):
        core.import_model(data, weights=MODEL)


def test_huge_sparse_weight_is_rejected():
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.zeros(1, np.int64))
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    del model.graph.initializer[:]
    model.graph.sparse_initializer.add(values=values, indices=indices, dims=[2_000_000_000])
    with (
        hetero.Core(executor="inprocess") as core,
        pytest.raises(ModelError, match="got 8000000000"),
    ):
        core.read_model(model)


def test_extension_missing_in_header_is_rejected(monkeypatch):
    """Even if this process has imported the module, and the payload contains its name."""
    domain, op_type = fraction.domain, fraction.op_type
    model = onnx.parser.parse_model(
        f'''<ir_version: 8, opset_import: ["": 17, "{domain}": 1]>
        g (float[4] x) => (float[4] y) {{ y = {domain}.{op_type}(x) }}'''
    )
    exported_options = blob._exported_options
    monkeypatch.setattr(
        blob,
        "_exported_options",
        lambda o: {k: v for k, v in exported_options(o).items() if k != "EXTENSIONS"},
    )
    with hetero.Core(executor="inprocess") as core:
        core.add_extension(fraction)
        with core.compile_model(model, "CPU") as compiled:
            data = compiled.export_model()
    with (
        hetero.Core(executor="inprocess") as other_core,
        pytest.raises(UnsupportedNodesError, match="add_extension"),
    ):
        other_core.import_model(data)
