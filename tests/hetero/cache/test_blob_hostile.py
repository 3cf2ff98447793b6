"""Blobs that ask for files, folders or memory that the machine would not give them by itself."""

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


def outside(tensor, path):
    """Have a tensor's contents lie in a file."""
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=path)


def as_initializer(graph, path):
    tensor = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "secret")
    outside(tensor, path)
    graph.initializer.append(tensor)
    graph.node[-1].input[0] = "secret"


def as_literal(graph, path):
    tensor = onnx.numpy_helper.from_array(np.zeros(4, np.float32))
    outside(tensor, path)
    graph.node.insert(0, onnx.helper.make_node("Constant", [], ["secret"], "c", value=tensor))
    graph.node[-1].input[0] = "secret"


@pytest.mark.parametrize("path", ["weights.bin", "../weights.bin"])
@pytest.mark.parametrize("put", [as_initializer, as_literal])
@pytest.mark.parametrize(("device", "key"), [("CPU", "graph"), ("ORT", "model")])
def test_a_payload_reads_no_file(device, key, put, path, tmp_path, monkeypatch):
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
    put(proto.graph, path)
    header = {**payload.header, key: proto.SerializeToString()}
    if "covers" in header:
        header["covers"] = {**header["covers"], "c": ["c"]}
    with pytest.raises(BlobError, match="external file"):
        plugin.import_model(Payload(header, payload.tensors), read_model(MODEL))


def test_a_blobs_source_reads_no_file(tmp_path, monkeypatch):
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    split = blob.split_model

    def hostile(source):
        parts = split(source)
        skeleton = onnx.ModelProto.FromString(parts.skeleton)
        as_literal(skeleton.graph, "weights.bin")
        return parts._replace(skeleton=skeleton.SerializeToString())

    with hetero.Core(executor="inprocess") as core:
        monkeypatch.setattr(blob, "split_model", hostile)
        with core.compile_model(model, "HETERO:ORT,CPU") as compiled:
            data = compiled.export_model()
        np.float32([7, 7, 7, 7]).tofile(tmp_path / "weights.bin")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(BlobError, match="external file"):
            core.import_model(data, "CPU")


@pytest.mark.parametrize("of_device", [False, True])
def test_a_blobs_options_name_no_files(of_device, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    places = {"CACHE_DIR": str(tmp_path / "made")}
    if not of_device:
        places |= {"COST_FILE": str(tmp_path / "pipe"), "MODEL_DISTRIBUTION_POLICY": "AUTO"}
    plain = blob._exported_options
    monkeypatch.setattr(
        blob,
        "_plain",
        lambda options: {
            **plain(options),
            **(places if ("COST_FILE" in options) is not of_device else {}),
        },
    )
    with hetero.Core(executor="inprocess") as core:
        with core.compile_model(MODEL, "HETERO:ORT,CPU", affinity={"y": "CPU"}) as compiled:
            data = compiled.export_model()
        with core.import_model(data, "CPU") as again:
            np.testing.assert_array_equal(again(np.zeros(4, np.float32))[0], [-1, -2, -3, -4])
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("nbytes", [6 * 10**9, 10**15])
def test_a_blob_without_weights_is_no_larger_than_what_is_there(nbytes):
    rows = struct.pack("<QQ16s", 64 * 4, nbytes - 64 * 4, b"0" * 16)
    header = msgpack.packb([rows, msgpack.packb({"kind": "model"})])
    first = PREFIX.pack(MAGIC, FORMAT_VERSION, 0, len(header), nbytes, b"")[:SUMMED_NBYTES]
    beginning = first + checksum_of(first, header) + header
    data = struct.pack("<8sQ", WEIGHTLESS, len(beginning)) + beginning + b"\x01"
    with (
        hetero.Core(executor="inprocess") as core,
        pytest.raises(BlobError, match="truncated or damaged"),
    ):
        core.import_model(data, weights=MODEL)


def test_a_sparse_weight_is_no_larger_than_a_dense_one_may_be():
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.zeros(1, np.int64))
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    del model.graph.initializer[:]
    model.graph.sparse_initializer.add(values=values, indices=indices, dims=[2_000_000_000])
    with (
        hetero.Core(executor="inprocess") as core,
        pytest.raises(ModelError, match="8000000000 bytes when it is dense"),
    ):
        core.read_model(model)


def test_an_extension_that_the_header_leaves_out_is_not_run(monkeypatch):
    """Also where this process has imported its module, and its payload names it."""
    domain, op_type = fraction.domain, fraction.op_type
    model = onnx.parser.parse_model(
        f'''<ir_version: 8, opset_import: ["": 17, "{domain}": 1]>
        g (float[4] x) => (float[4] y) {{ y = {domain}.{op_type}(x) }}'''
    )
    plain = blob._exported_options
    monkeypatch.setattr(
        blob, "_plain", lambda o: {k: v for k, v in plain(o).items() if k != "EXTENSIONS"}
    )
    with hetero.Core(executor="inprocess") as core:
        core.add_extension(fraction)
        with core.compile_model(model, "CPU") as compiled:
            data = compiled.export_model()
    with (
        hetero.Core(executor="inprocess") as other,
        pytest.raises(UnsupportedNodesError, match="add_extension"),
    ):
        other.import_model(data)
