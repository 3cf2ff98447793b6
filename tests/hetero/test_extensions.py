"""Extensions: Python functions, ONNX functions and libraries of ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices.errors import (
    ArgumentError,
    BlobError,
    KernelError,
    ModelError,
    UnsupportedNodesError,
)
from tests.support import custom_operators
from tests.support.core_fixtures import core_fixture
from tests.support.custom_operators import halve, lie, squeak

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
DOMAIN = "org.example"


def custom_model(graph: str, *, functions: str = "") -> onnx.ModelProto:
    """Parse a graph, and build a model that imports the custom domain."""
    domains = f'"": 18, "{DOMAIN}": 1'
    text = f"<ir_version: 9, opset_import: [{domains}]> custom {graph} {functions}"
    return onnx.parser.parse_model(text)


def single_node_model(node: str, kind: str = "float") -> onnx.ModelProto:
    """Return a model with one custom node, whose name is ``node``."""
    return custom_model(f"(float[4, 3] x) => ({kind}[] y) {{ [node] y = {DOMAIN}.{node} }}")


def squeak_model() -> onnx.ModelProto:
    """Return the model relu -> squeak -> abs."""
    return custom_model(
        f"""(float[4, 3] x) => (float[] y) {{
            [relu] a = Relu(x) [squeak] b = {DOMAIN}.Squeak <loud = 2.0> (a) [abs] y = Abs(b)
        }}"""
    )


EXPECTED = np.abs(np.sin(np.maximum(X, 0)) * 2)


core = core_fixture()


def test_missing_extension_refusal_suggests_add_extension(core):
    support = core.query_model(squeak_model(), "HETERO:ORT,CPU")
    assert "Core.add_extension" in support.unsupported["squeak"]["CPU"].message


@pytest.mark.parametrize("extension", [squeak, "tests.support.custom_operators:squeak"])
def test_python_extension_runs_on_cpu(core, extension):
    core.add_extension(extension)
    support = core.query_model(squeak_model(), "HETERO:ORT,CPU")
    assert dict(support) == {"relu": "ORT", "squeak": "CPU", "abs": "ORT"}
    compiled = core.compile_model(squeak_model(), "HETERO:ORT,CPU")
    assert [subgraph.device for subgraph in compiled.subgraphs] == ["ORT", "CPU", "ORT"]
    np.testing.assert_allclose(compiled(X)[0], EXPECTED, rtol=1e-6)
    with pytest.raises(UnsupportedNodesError, match="squeak"):
        core.compile_model(squeak_model(), "ORT")


def test_infer_rule_types_later_values(core):
    core.add_extension(halve)
    text = f"""(float[4, 3] x) => (float[] d, double[] e) {{
        a, b = {DOMAIN}.Halve(x) c = Tanh(a) d, left_out = {DOMAIN}.Halve(c) e = Neg(b)
    }}"""
    proto = custom_model(text)
    proto.graph.node[2].output[1] = ""
    model = core.read_model(proto)
    assert {n: str(model.spec(n)) for n in "abcde"} == {
        "a": "tensor(float)[2, 3]",
        "b": "tensor(double)[2, 3]",
        "c": "tensor(float)[2, 3]",
        "d": "tensor(float)[1, 3]",
        "e": "tensor(double)[2, 3]",
    }
    compiled = core.compile_model(model, "HETERO:ORT,CPU")
    d, e = compiled(X).to_tuple()
    np.testing.assert_allclose(d, np.tanh(X[:1]), rtol=1e-6)
    np.testing.assert_array_equal(e, -X[2:].astype(np.float64))


def test_extension_in_body_and_function(core):
    core.add_extension(squeak)
    branch = f"s () => (float[] t) {{ t = {DOMAIN}.Squeak(x) }}"
    model = custom_model(
        f"""(float[4, 3] x) => (float[] y) {{
            yes = Constant <value = bool {{1}}> ()
            a = If (yes) <then_branch = {branch}, else_branch = {branch}>
            y = {DOMAIN}.Twice(a)
        }}""",
        functions=f"""<domain: "{DOMAIN}", opset_import: ["{DOMAIN}": 1]> Twice (p) => (q)
        {{ o = {DOMAIN}.Squeak(p) q = {DOMAIN}.Squeak(o) }}""",
    )
    output = core.compile_model(model, "CPU")(X)[0]
    np.testing.assert_allclose(output, np.sin(np.sin(np.sin(X))), rtol=1e-6)


def onnx_function() -> onnx.FunctionProto:
    """Return Squeak as ONNX nodes."""
    return onnx.parser.parse_function(
        f"""<domain: "{DOMAIN}", opset_import: ["": 18]> Squeak <loud> (x) => (y)
        {{ loud = Constant <value_float: float = @loud> () s = Sin(x) y = Mul(s, loud) }}"""
    )


@pytest.mark.parametrize("device", ["CPU", "ORT", "HETERO:ORT,CPU"])
def test_onnx_function_runs_on_every_device(core, device):
    core.add_extension(onnx_function())
    pins = {"squeak": "CPU"} if device.startswith("HETERO") else None
    compiled = core.compile_model(squeak_model(), device, affinity=pins)
    np.testing.assert_allclose(compiled(X)[0], EXPECTED, rtol=1e-6)
    blob = compiled.export_model()
    with hetero.Core("inprocess") as other_core:  # without the extension
        np.testing.assert_allclose(other_core.import_model(blob)(X)[0], EXPECTED, rtol=1e-6)


def test_import_requires_the_blobs_extensions(core):
    core.add_extension(squeak)
    blob = core.compile_model(squeak_model(), "HETERO:ORT,CPU").export_model()
    np.testing.assert_allclose(core.import_model(blob)(X)[0], EXPECTED, rtol=1e-6)
    with hetero.Core("inprocess") as other_core:
        with pytest.raises(BlobError, match=r"custom_operators:squeak.*add_extension") as error:
            other_core.import_model(blob)
        assert "trust" in str(error.value)
        other_core.add_extension(squeak)
        np.testing.assert_allclose(other_core.import_model(blob)(X)[0], EXPECTED, rtol=1e-6)


def test_model_metadata_imports_no_extension(core, tmp_path):
    """The metadata of a model cannot import a module."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    model = squeak_model()
    model.metadata_props.add(key="hetero.extension:org.example::Squeak", value="evil:run#0")

    sys.path.insert(0, str(tmp_path))
    try:
        assert "squeak" in core.query_model(model, "CPU").unsupported
        core.add_extension(halve)
        assert "squeak" in core.query_model(model, "CPU").unsupported
        core.add_extension(squeak)  # replaces the extension of the model's metadata
        np.testing.assert_allclose(core.compile_model(model, "CPU")(X)[0], EXPECTED, rtol=1e-6)
    finally:
        sys.path.remove(str(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_cache_distinguishes_extensions(core, tmp_path, monkeypatch):
    config = {"CACHE_DIR": str(tmp_path)}

    def compile_cached(extension: Any) -> bool:
        with hetero.Core("inprocess") as extension_core:
            extension_core.add_extension(extension)
            compiled = extension_core.compile_model(squeak_model(), "CPU", config)
            np.testing.assert_allclose(compiled(X)[0], EXPECTED, rtol=1e-6)
            is_hit: bool = compiled.get_property("LOADED_FROM_CACHE")
        return is_hit

    assert [
        compile_cached(squeak),
        compile_cached(squeak),
        compile_cached(onnx_function()),
        compile_cached(onnx_function()),
    ] == [
        False,
        True,
        False,
        True,
    ]
    # A module with another source text may compute other results.
    origin = squeak.origin.partition("#")[0] + "#another"
    monkeypatch.setitem(squeak.__dict__, "origin", origin)
    assert not compile_cached(squeak)


def test_output_that_contradicts_its_infer_rule_is_rejected(core):
    core.add_extension(lie)
    model = custom_model(
        f"(float[4, 3] x) => (float[] y) {{ [liar] a = {DOMAIN}.Lie(x) y = Relu(a) }}"
    )
    compiled = core.compile_model(model, "CPU")
    with pytest.raises(KernelError, match=r"'liar'.*output 0 .*tensor\(double\)\[1, 3\].*rule"):
        compiled(X)


def test_infer_rule_that_contradicts_the_model_is_rejected(core):
    core.add_extension(squeak)
    with pytest.raises(ModelError, match=r"'node'.*float\)\[4, 3\].*declares tensor\(double\)"):
        core.read_model(single_node_model("Squeak(x)", "double"))


def test_failing_infer_rule_error_names_the_node(core):
    core.add_extension(custom_operators.broken)
    with pytest.raises(ModelError, match=r"'node'.*rule.*AttributeError"):
        core.read_model(single_node_model("Broken(x)"))


def test_unknown_attribute_is_refused(core):
    core.add_extension(squeak)
    support = core.query_model(single_node_model("Squeak <quiet = 1.0> (x)"), "CPU")
    refusal = support.unsupported["node"]["CPU"]
    assert (refusal.code, "known: loud" in refusal.message) == ("attribute", True)


@pytest.mark.parametrize(
    ("extension", "pattern"),
    [
        (3, "custom_operator"),
        ("nowhere_at_all:squeak", "cannot be imported"),
        ("tests.support.custom_operators:plain", "with the decorator"),
        ("tests.support.custom_operators:absent", "with the decorator"),
        ("no colon", "cannot be imported|with the decorator"),
        (hetero.custom_operator("a.b::C", infer=lambda x: x)(lambda x: x), "top level of a module"),
    ],
)
def test_invalid_extension_is_rejected(core, extension, pattern):
    with pytest.raises(ArgumentError, match=pattern):
        core.add_extension(extension)


def test_second_extension_of_an_operator_is_rejected(core):
    core.add_extension(squeak)
    core.add_extension(squeak)
    with pytest.raises(ArgumentError, match=r"org\.example::Squeak already has an extension"):
        core.add_extension(onnx_function())


@pytest.mark.parametrize("name", ["Squeak", "::Squeak", "org.example::", "ai.onnx::Relu"])
def test_operator_without_custom_domain_is_rejected(name):
    with pytest.raises(ArgumentError, match="a custom domain"):
        hetero.custom_operator(name, infer=lambda x: x)


def test_older_domain_version_is_rejected(core):
    core.add_extension(custom_operators.late)
    with pytest.raises(ArgumentError, match="requires version 3 or later"):
        core.read_model(single_node_model("Late(x)"))


@pytest.mark.ray
@pytest.mark.slow
def test_extension_in_ray_processes(local_ray):
    with hetero.Core() as core:
        core.add_extension(squeak)
        compiled = core.compile_model(squeak_model(), "HETERO:ORT,CPU")
        np.testing.assert_allclose(compiled(X)[0], EXPECTED, rtol=1e-6)
        blob = compiled.export_model()
        np.testing.assert_allclose(core.import_model(blob)(X)[0], EXPECTED, rtol=1e-6)


def library() -> Path:
    """Return the library of onnxruntime-extensions."""
    extensions = pytest.importorskip(
        "onnxruntime_extensions", reason="needs pip install onnxruntime-extensions"
    )
    return Path(extensions.get_library_path())


def inverse_model() -> onnx.ModelProto:
    """Return the model neg -> inverse -> relu, with Inverse of onnxruntime-extensions."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]>
        g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] b>
        { [neg] a = Neg(x) [inverse] b = ai.onnx.contrib.Inverse(a) [relu] y = Relu(b) }"""
    )


def test_onnxruntime_library_runs_on_ort(core):
    path, x = library(), np.float32([[1, 2], [3, 5]])
    expected = np.maximum(np.linalg.inv(-x), 0)
    assert "inverse" in core.query_model(inverse_model(), "HETERO:ORT,CPU").unsupported
    core.add_extension(path)
    compiled = core.compile_model(inverse_model(), "HETERO:CPU,ORT")
    assert [subgraph.device for subgraph in compiled.subgraphs] == ["CPU", "ORT", "CPU"]
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-4)
    blob = compiled.export_model()
    np.testing.assert_allclose(core.import_model(blob)(x)[0], expected, rtol=1e-4)
    with hetero.Core("inprocess") as other_core, pytest.raises(BlobError, match=r"trust"):
        other_core.import_model(blob)


def test_missing_library_is_rejected(core, tmp_path):
    with pytest.raises(ArgumentError, match="cannot be read"):
        core.add_extension(tmp_path / "none.so")


def test_invalid_library_is_a_refusal(core, tmp_path):
    (tmp_path / "text.so").write_text("no library")
    core.add_extension(str(tmp_path / "text.so"))
    refusal = core.query_model(inverse_model(), "ORT").unsupported["inverse"]["ORT"]
    assert "text.so" in refusal.message
