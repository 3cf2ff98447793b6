"""Custom operators: as functions of arrays, and as ONNX functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
from tests.support.custom_operators import halve, lie, squeak

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
DOMAIN = "org.example"


def custom(graph: str, *, functions: str = "") -> onnx.ModelProto:
    """Return the model of a graph's text."""
    domains = f'"": 18, "{DOMAIN}": 1'
    text = f"<ir_version: 9, opset_import: [{domains}]> custom {graph} {functions}"
    return onnx.parser.parse_model(text)


def one_node(node: str, kind: str = "float") -> onnx.ModelProto:
    """Return a model of one operator of the domain, called ``node``."""
    return custom(f"(float[4, 3] x) => ({kind}[] y) {{ [node] y = {DOMAIN}.{node} }}")


def squeaking() -> onnx.ModelProto:
    """Return relu -> Squeak -> abs."""
    return custom(
        f"""(float[4, 3] x) => (float[] y) {{
            [relu] a = Relu(x) [squeak] b = {DOMAIN}.Squeak <loud = 2.0> (a) [abs] y = Abs(b)
        }}"""
    )


ANSWER = np.abs(np.sin(np.maximum(X, 0)) * 2)


@pytest.fixture
def core() -> Iterator[hetero.Core]:
    with hetero.Core("inprocess") as core:
        yield core


def test_without_its_extension_an_operator_is_refused_with_the_remedy(core: hetero.Core) -> None:
    support = core.query_model(squeaking(), "HETERO:ORT,CPU")
    assert "Core.add_extension" in support.unsupported["squeak"]["CPU"].message


@pytest.mark.parametrize("given", [squeak, "tests.support.custom_operators:squeak"])
def test_a_function_of_arrays_is_an_operator_of_the_cpu(core: hetero.Core, given: Any) -> None:
    core.add_extension(given)
    support = core.query_model(squeaking(), "HETERO:ORT,CPU")
    assert dict(support) == {"relu": "ORT", "squeak": "CPU", "abs": "ORT"}
    compiled = core.compile_model(squeaking(), "HETERO:ORT,CPU")
    assert [subgraph.device for subgraph in compiled.subgraphs] == ["ORT", "CPU", "ORT"]
    np.testing.assert_allclose(compiled(X)[0], ANSWER, rtol=1e-6)
    with pytest.raises(UnsupportedNodesError, match="squeak"):
        core.compile_model(squeaking(), "ORT")


def test_the_rule_types_what_follows(core: hetero.Core) -> None:
    core.add_extension(halve)
    text = f"""(float[4, 3] x) => (float[] d, double[] e) {{
        a, b = {DOMAIN}.Halve(x) c = Tanh(a) d, left_out = {DOMAIN}.Halve(c) e = Neg(b)
    }}"""
    proto = custom(text)
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


def test_one_in_the_body_of_a_loop_or_function_runs_too(core: hetero.Core) -> None:
    core.add_extension(squeak)
    branch = f"s () => (float[] t) {{ t = {DOMAIN}.Squeak(x) }}"
    model = custom(
        f"""(float[4, 3] x) => (float[] y) {{
            yes = Constant <value = bool {{1}}> ()
            a = If (yes) <then_branch = {branch}, else_branch = {branch}>
            y = {DOMAIN}.Twice(a)
        }}""",
        functions=f"""<domain: "{DOMAIN}", opset_import: ["{DOMAIN}": 1]> Twice (p) => (q)
        {{ o = {DOMAIN}.Squeak(p) q = {DOMAIN}.Squeak(o) }}""",
    )
    got = core.compile_model(model, "CPU")(X)[0]
    np.testing.assert_allclose(got, np.sin(np.sin(np.sin(X))), rtol=1e-6)


def onnx_function() -> onnx.FunctionProto:
    """Return Squeak as ONNX nodes."""
    return onnx.parser.parse_function(
        f"""<domain: "{DOMAIN}", opset_import: ["": 18]> Squeak <loud> (x) => (y)
        {{ loud = Constant <value_float: float = @loud> () s = Sin(x) y = Mul(s, loud) }}"""
    )


@pytest.mark.parametrize("device", ["CPU", "ORT", "HETERO:ORT,CPU"])
def test_an_onnx_function_is_an_operator_of_every_device(core: hetero.Core, device: str) -> None:
    core.add_extension(onnx_function())
    pins = {"squeak": "CPU"} if device.startswith("HETERO") else None
    compiled = core.compile_model(squeaking(), device, affinity=pins)
    np.testing.assert_allclose(compiled(X)[0], ANSWER, rtol=1e-6)
    blob = compiled.export_model()
    with hetero.Core("inprocess") as other:  # which does not know the function
        np.testing.assert_allclose(other.import_model(blob)(X)[0], ANSWER, rtol=1e-6)


def test_a_blob_runs_only_extensions_that_were_added(core: hetero.Core) -> None:
    core.add_extension(squeak)
    blob = core.compile_model(squeaking(), "HETERO:ORT,CPU").export_model()
    np.testing.assert_allclose(core.import_model(blob)(X)[0], ANSWER, rtol=1e-6)
    with hetero.Core("inprocess") as other:
        with pytest.raises(BlobError, match=r"custom_operators:squeak.*add_extension") as refused:
            other.import_model(blob)
        assert "trust" in str(refused.value)
        other.add_extension(squeak)
        np.testing.assert_allclose(other.import_model(blob)(X)[0], ANSWER, rtol=1e-6)


def test_what_a_model_names_is_not_imported_unless_it_was_added(
    core: hetero.Core, tmp_path: Path
) -> None:
    """A model from elsewhere that names a function of its choice runs no code."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    model = squeaking()
    model.metadata_props.add(key="hetero.extension:org.example::Squeak", value="evil:run#0")

    sys.path.insert(0, str(tmp_path))
    try:
        assert "squeak" in core.query_model(model, "CPU").unsupported
        core.add_extension(halve)
        assert "squeak" in core.query_model(model, "CPU").unsupported
        core.add_extension(squeak)  # the user's own takes the place of the model's
        np.testing.assert_allclose(core.compile_model(model, "CPU")(X)[0], ANSWER, rtol=1e-6)
    finally:
        sys.path.remove(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_another_extension_is_another_entry_of_the_cache(
    core: hetero.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"CACHE_DIR": str(tmp_path)}

    def hit(extension: Any) -> bool:
        with hetero.Core("inprocess") as own:
            own.add_extension(extension)
            compiled = own.compile_model(squeaking(), "CPU", config)
            np.testing.assert_allclose(compiled(X)[0], ANSWER, rtol=1e-6)
            found: bool = compiled.get_property("LOADED_FROM_CACHE")
        return found

    assert [hit(squeak), hit(squeak), hit(onnx_function()), hit(onnx_function())] == [
        False,
        True,
        False,
        True,
    ]
    # A module whose text has changed may compute something else.
    origin = squeak.origin.partition("#")[0] + "#another"
    monkeypatch.setitem(squeak.__dict__, "origin", origin)
    assert not hit(squeak)


def test_a_rule_that_lies_about_its_output_is_told(core: hetero.Core) -> None:
    core.add_extension(lie)
    model = custom(f"(float[4, 3] x) => (float[] y) {{ [liar] a = {DOMAIN}.Lie(x) y = Relu(a) }}")
    compiled = core.compile_model(model, "CPU")
    with pytest.raises(KernelError, match=r"'liar'.*output 0 .*tensor\(double\)\[1, 3\].*rule"):
        compiled(X)


def test_a_rule_that_contradicts_the_model_is_told(core: hetero.Core) -> None:
    core.add_extension(squeak)
    with pytest.raises(ModelError, match=r"'node'.*float\)\[4, 3\].*declares tensor\(double\)"):
        core.read_model(one_node("Squeak(x)", "double"))


def test_a_rule_that_fails_names_the_node(core: hetero.Core) -> None:
    core.add_extension(custom_operators.broken)
    with pytest.raises(ModelError, match=r"'node'.*rule.*AttributeError"):
        core.read_model(one_node("Broken(x)"))


def test_an_attribute_that_the_function_lacks_is_refused(core: hetero.Core) -> None:
    core.add_extension(squeak)
    support = core.query_model(one_node("Squeak <quiet = 1.0> (x)"), "CPU")
    refusal = support.unsupported["node"]["CPU"]
    assert (refusal.code, "known: loud" in refusal.message) == ("attribute", True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "custom_operator"),
        ("nowhere_at_all:squeak", "cannot be imported"),
        ("tests.support.custom_operators:plain", "with the decorator"),
        ("tests.support.custom_operators:absent", "with the decorator"),
        ("no colon", "cannot be imported|with the decorator"),
        (hetero.custom_operator("a.b::C", infer=lambda x: x)(lambda x: x), "top level of a module"),
    ],
)
def test_what_is_no_extension_is_told(core: hetero.Core, given: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        core.add_extension(given)


def test_an_operator_has_one_extension(core: hetero.Core) -> None:
    core.add_extension(squeak)
    core.add_extension(squeak)
    with pytest.raises(ArgumentError, match=r"org\.example::Squeak has an extension already"):
        core.add_extension(onnx_function())


@pytest.mark.parametrize("name", ["Squeak", "::Squeak", "org.example::", "ai.onnx::Relu"])
def test_an_operator_has_a_domain_of_its_own(name: str) -> None:
    with pytest.raises(ArgumentError, match="a custom domain"):
        hetero.custom_operator(name, infer=lambda x: x)


def test_an_older_version_of_the_domain_is_told(core: hetero.Core) -> None:
    core.add_extension(custom_operators.late)
    with pytest.raises(ArgumentError, match="from 3 on"):
        core.read_model(one_node("Late(x)"))


@pytest.mark.ray
@pytest.mark.slow
def test_devices_processes_import_it(local_ray: None) -> None:
    with hetero.Core() as core:
        core.add_extension(squeak)
        compiled = core.compile_model(squeaking(), "HETERO:ORT,CPU")
        np.testing.assert_allclose(compiled(X)[0], ANSWER, rtol=1e-6)
        blob = compiled.export_model()
        np.testing.assert_allclose(core.import_model(blob)(X)[0], ANSWER, rtol=1e-6)


def library() -> Path:
    """Return a library of operators that is made for ONNX Runtime."""
    extensions = pytest.importorskip(
        "onnxruntime_extensions", reason="a library to try: pip install onnxruntime-extensions"
    )
    return Path(extensions.get_library_path())


def inverting() -> onnx.ModelProto:
    """Return neg -> Inverse, of ONNX Runtime's extensions -> Relu."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]>
        g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] b>
        { [neg] a = Neg(x) [inverse] b = ai.onnx.contrib.Inverse(a) [relu] y = Relu(b) }"""
    )


def test_a_library_of_onnx_runtime_gives_operators_to_its_device(core: hetero.Core) -> None:
    path, x = library(), np.float32([[1, 2], [3, 5]])
    want = np.maximum(np.linalg.inv(-x), 0)
    assert "inverse" in core.query_model(inverting(), "HETERO:ORT,CPU").unsupported
    core.add_extension(path)
    compiled = core.compile_model(inverting(), "HETERO:CPU,ORT")
    assert [subgraph.device for subgraph in compiled.subgraphs] == ["CPU", "ORT", "CPU"]
    np.testing.assert_allclose(compiled(x)[0], want, rtol=1e-4)
    blob = compiled.export_model()
    np.testing.assert_allclose(core.import_model(blob)(x)[0], want, rtol=1e-4)
    with hetero.Core("inprocess") as other, pytest.raises(BlobError, match=r"trust"):
        other.import_model(blob)


def test_a_library_that_is_not_there_is_told(core: hetero.Core, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        core.add_extension(tmp_path / "none.so")


def test_a_library_that_is_none_is_a_refusal(core: hetero.Core, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    core.add_extension(str(tmp_path / "text.so"))
    refusal = core.query_model(inverting(), "ORT").unsupported["inverse"]["ORT"]
    assert "text.so" in refusal.message
