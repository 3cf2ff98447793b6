"""Comparison of one operator's kernel with an oracle.

The default oracle is ONNX Runtime, on a one-node model at the opset under test. `run_reference` is
ONNX's own evaluator, for operators that ONNX Runtime lacks (correct from opset 13). If neither runs
the operator, `check` takes the expected outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero.devices.kernels import KERNELS
from hetero.devices.kernels.microsoft import MICROSOFT
from tests.emulated_gpu.backend import is_deterministic_on_device, run_on_device
from tests.support.comparison import WIDER_TYPES, assert_close
from tests.support.small_models import onnxruntime_session, value_info

#: Newest opset that the installed onnx defines.
NEWEST = onnx.defs.onnx_opset_version()

#: Newest opset that the installed ONNX Runtime loads.
ORT_NEWEST = 26


def opsets(op_type: str, oldest: int = 7, newest: int = ORT_NEWEST, domain: str = "") -> list[int]:
    """Return one opset for each version of the operator from `oldest` to `newest`.

    None for an operator that the installed onnx does not define.
    """
    if domain == MICROSOFT:  # ONNX Runtime defines it, in one version
        return [1]
    versions = [version for version in _versions(domain).get(op_type, ()) if version <= newest]
    return sorted(
        {max(version, oldest) for version in versions if version <= oldest}
        | {version for version in versions if version > oldest}
    )


@cache
def _versions(domain: str) -> dict[str, list[int]]:
    """Return the versions of each operator of a domain, in order."""
    versions_by_name: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain:
            versions_by_name.setdefault(schema.name, []).append(schema.since_version)
    return {name: sorted(versions) for name, versions in versions_by_name.items()}


def cases(*op_types: str, oldest: int = 7, newest: int = ORT_NEWEST) -> list[tuple[str, int]]:
    """Return each operator with each of its `opsets`."""
    return [(name, opset) for name in op_types for opset in opsets(name, oldest, newest)]


def ints(*values: Any) -> Any:
    return np.array(values, dtype=np.int64)


def frozen(value: Any) -> Any:
    """Return the value with every array in it replaced by a read-only copy."""
    if isinstance(value, np.ndarray):
        copy = value.copy()
        copy.setflags(write=False)
        return copy
    if isinstance(value, np.generic):
        return frozen(np.asarray(value))
    if isinstance(value, list):
        return [frozen(item) for item in value]
    return value


def run_kernel(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    opset: int = NEWEST,
    domain: str = "",
    n_outputs: int = 1,
) -> list[Any]:
    """Run the kernel like the executor, with read-only inputs; return its outputs as a list.

    If the emulated GPU supports the element types, the kernel also runs there, with equal outputs.
    """
    kernel = KERNELS.find(domain, op_type, opset)
    assert kernel is not None, f"no kernel for {domain}::{op_type} at opset {opset}"
    keywords = {
        name: tuple(value) if isinstance(value, list) else frozen(value)
        for name, value in (attributes or {}).items()
    }
    unknown = set(keywords) - kernel.attributes
    assert not unknown, f"{op_type} at opset {opset} takes no attribute {sorted(unknown)}"
    reserved = {"memo": {}, "n_outputs": n_outputs, "version": opset}
    keywords |= {name: reserved[name] for name in kernel.reserved}
    arguments = [frozen(value) for value in inputs]
    with np.errstate(all="ignore"):
        result = kernel.function(np, *arguments, **keywords)
        results = list(result) if isinstance(result, tuple) else [result]
        if is_deterministic_on_device(kernel, arguments, keywords, results):
            if "memo" in keywords:
                keywords["memo"] = {}  # the first memo holds arrays of the host
            on_device = run_on_device(kernel, arguments, keywords)
            for position, (actual, result) in enumerate(zip(on_device, results, strict=True)):
                subject = f"{op_type} on the emulated GPU, output {position}"
                # The GPU's own convolution adds products in another order.
                tolerance = 1e-4 if op_type == "Conv" else 1e-6
                assert_close(actual, result, tolerance, tolerance, subject)
    return results


def refuses(error: type[Exception], message: str, *arguments: Any, **keywords: Any) -> None:
    """Assert that the kernel raises this error; `message` is a pattern of its text."""
    with pytest.raises(error, match=message):
        run_kernel(*arguments, **keywords)


def one_node_model(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    opset: int = NEWEST,
    domain: str = "",
    n_outputs: int = 1,
) -> onnx.ModelProto:
    """Return a model of one node, whose graph inputs are those that the node has."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(n_outputs)]
    tensors = {
        name: numpy_helper.from_array(np.asarray(value), name)
        if isinstance(value, np.ndarray | np.generic)
        else value
        for name, value in (attributes or {}).items()
    }
    node = helper.make_node(op_type, names, outputs, domain=domain, **tensors)
    graph = helper.make_graph(
        [node],
        op_type,
        [value_info(name, value) for name, value in zip(names, inputs, strict=True) if name],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    imports = [helper.make_opsetid("", ORT_NEWEST if domain else opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, opset))
    ir_version = max(8, helper.find_min_ir_version_for(imports, ignore_unknown=True))
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def run_onnxruntime(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    opset: int = NEWEST,
    domain: str = "",
    n_outputs: int = 1,
) -> list[Any]:
    """Run the operator on ONNX Runtime's CPU provider, one thread, no graph optimisation."""
    model = one_node_model(op_type, inputs, attributes, opset, domain, n_outputs)
    session = _session(model.SerializeToString())
    return list(session.run(None, _feeds(inputs)))


def run_reference(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    opset: int = NEWEST,
    domain: str = "",
    n_outputs: int = 1,
) -> list[Any]:
    """Run the operator on ONNX's ReferenceEvaluator."""
    model = one_node_model(op_type, inputs, attributes, opset, domain, n_outputs)
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, _feeds(inputs)))


def check(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    opset: int = NEWEST,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    *,
    domain: str = "",
    n_outputs: int = 1,
    oracle: Any = run_onnxruntime,
    expected: Sequence[Any] | None = None,
) -> list[Any]:
    """Assert that the kernel's outputs equal the oracle's, or `expected`; return them."""
    ours = run_kernel(op_type, inputs, attributes, opset, domain, n_outputs)
    if expected is None:
        expected = oracle(op_type, inputs, attributes, opset, domain, n_outputs)
    case = f"{op_type} at opset {opset}, {dict(attributes or {})}"
    for position, (actual, expected_output) in enumerate(
        zip(ours[:n_outputs], list(expected)[:n_outputs], strict=True)
    ):
        assert_close(actual, expected_output, rtol, atol, f"{case}, output {position}")
    return ours


def _feeds(inputs: Sequence[Any]) -> dict[str, Any]:
    return {
        f"x{i}": np.asarray(value) if isinstance(value, np.generic) else value
        for i, value in enumerate(inputs)
        if value is not None
    }


_session = cache(partial(onnxruntime_session, as_written=True))

#: Element types of ml_dtypes by numpy's name.
NARROW = {
    name: np.dtype(getattr(ml_dtypes, name)) for name in WIDER_TYPES if hasattr(ml_dtypes, name)
}
