"""Models with preprocessing in Core: query, placement, blob, cache and batches."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices.errors import TensorShapeError
from tests.support.preprocess_cases import model, picture


def source(mean: float = 100.0, layout: str = "NHWC", batch: int | str = "batch") -> hetero.Model:
    ppp = hetero.PrePostProcessor(model((batch, 3, 6, 8)))
    ppp.input().tensor().set_element_type("u8").set_layout(layout)
    ppp.input().preprocess().convert_element_type("f32").mean(mean)
    ppp.input().model().set_layout("NCHW")
    return ppp.build()


def expected(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).transpose(0, 3, 1, 2) - 100


X = picture((2, 6, 8, 3))


def test_preprocessing_nodes_are_queried_and_split(core):
    support = core.query_model(source(), "HETERO:ORT,CPU", affinity={"x/*": "CPU"})
    assert dict(support) == {"x/cast": "CPU", "x/sub": "CPU", "x/transpose": "CPU", "model": "ORT"}
    compiled = core.compile_model(source(), "HETERO:ORT,CPU", affinity={"x/*": "CPU"})
    assert [subgraph.device for subgraph in compiled.subgraphs] == ["CPU", "ORT"]
    np.testing.assert_array_equal(compiled(X)[0], expected(X))


def test_blob_contains_steps_and_layouts(core):
    blob = core.compile_model(source(), "HETERO:ORT,CPU", affinity={"x/*": "CPU"}).export_model()
    compiled = core.import_model(blob)
    assert compiled.input().layout == "NHWC"
    assert compiled.input().element_type == "uint8"
    np.testing.assert_array_equal(compiled(X)[0], expected(X))
    request = compiled.create_infer_request()
    with pytest.raises(TensorShapeError, match="1 on axis 0"):
        request.set_tensors("x", [X, X])


def test_onnx_file_contains_layouts(core, tmp_path):
    source().save(tmp_path / "model.onnx")
    read_back = core.read_model(tmp_path / "model.onnx")
    assert (read_back.inputs, read_back.outputs) == (source().inputs, source().outputs)
    assert read_back.content_hash == source().content_hash
    assert (
        onnx.load(tmp_path / "model.onnx").graph.input[0].type.tensor_type.shape.dim[0].denotation
        == "DATA_BATCH"
    )  # the batch dimension in ONNX


def test_steps_and_layouts_change_the_cache_key(core, tmp_path):
    config = {"CACHE_DIR": str(tmp_path)}
    hits = [
        core.compile_model(source_model, "CPU", config).get_property("LOADED_FROM_CACHE")
        for source_model in (source(), source(), source(mean=1.0), source(layout="N??C"))
    ]
    assert hits == [False, True, False, False]
    cached = core.compile_model(source(), "CPU", config)
    assert cached.create_infer_request().get_input_tensor().shape[1:] == (6, 8, 3)
    np.testing.assert_array_equal(cached(X)[0], expected(X))


@pytest.mark.parametrize("device", ["CPU", "HETERO:ORT,CPU"])
@pytest.mark.parametrize("layout", ["NHWC", "HWNC"])
def test_set_tensors_joins_along_axis_n(core, device, layout):
    request = core.compile_model(source(layout=layout), device).create_infer_request()
    images = [item[None].transpose(["NHWC".index(x) for x in layout]) for item in X]
    request.set_tensors("x", images)
    request.infer()
    np.testing.assert_array_equal(request.results[0], expected(X))
    axis = layout.index("N")
    with pytest.raises(TensorShapeError, match=f"1 on axis {axis}"):
        request.set_tensors("x", [np.concatenate([item, item], axis) for item in images])


def test_set_tensors_needs_a_batch_in_the_layout(core):
    request = core.compile_model(source(layout="HWC", batch=1), "CPU").create_infer_request()
    with pytest.raises(TensorShapeError, match=r"HWC.*expected a port with a batch axis"):
        request.set_tensors("x", [X[0], X[1]])
    request.set_tensor("x", X[0])
    request.infer()
    np.testing.assert_array_equal(request.results[0], expected(X[:1]))


@pytest.mark.ray
@pytest.mark.slow
def test_preprocessing_runs_on_ray(local_ray):
    with hetero.Core() as core:
        compiled = core.compile_model(source(), "HETERO:ORT,CPU", affinity={"x/*": "CPU"})
        np.testing.assert_array_equal(compiled(X)[0], expected(X))
        assert compiled.input().layout == "NHWC"
