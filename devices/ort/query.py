"""What ONNX Runtime says of each node: asked with a session of that node alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import onnxruntime

from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.ort.errors import ERRORS
from hetero.devices.ort.provider import Provider, provider_names
from hetero.devices.ort.versions import changed_since, lowered
from hetero.devices.plugin.faults import Fault, Use, departure
from hetero.devices.plugin.questions import (
    NUMPY_TYPES,
    Question,
    Questions,
    Verdict,
    Verdicts,
    single_node_model,
)
from hetero.devices.plugin.support import Refusal, RefusalCode

#: The lowest operator set that ONNX Runtime promises to run right.
LOWEST_OPSET: Final = 7
#: Element types that cross between Python and ONNX Runtime as arrays.
FEEDABLE: Final = NUMPY_TYPES | {"string"}
#: Integer constants up to this many elements are shown to the session: shapes, axes, sizes.
_SHOWN_ELEMENTS: Final = 64
#: Operators whose floating-point constants matter to whether they are supported.
_FLOATS_MATTER: Final = frozenset({"Resize", "Upsample", "Range", "Dropout", "NonMaxSuppression"})
_LOST_NBYTES: Final = 127
_VERSION: Final = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


@dataclass(frozen=True, slots=True)
class OrtQuestion(Question):
    """A node to ask about."""

    #: Its operator's.
    domain: str
    #: The types of what it reads and makes.
    reads: list[str]
    writes: list[str]


class OrtQuery(Verdicts[Provider]):
    """Verdicts of ONNX Runtime on nodes."""

    def __init__(self) -> None:
        super().__init__(_shown, _question, _answers)

    def judge(self, model: Model, provider: Provider) -> dict[str, Refusal | str]:
        """Return refusals, and notes on nodes that are not run as they stand, by node name."""
        known = {n.name: refusal for n in model.nodes if (refusal := _known(n, model))}
        asked = (node for node in model.nodes if node.name not in known)
        return {**known, **self.of(asked, model, provider)}


def _known(node: Node, model: Model) -> Refusal | None:
    """Return a refusal that needs no session."""
    opset = model.opset_imports.get(node.domain)
    if not node.domain and opset is not None and opset < LOWEST_OPSET:
        return Refusal(
            "opset",
            f"ONNX Runtime runs operator sets from {LOWEST_OPSET} on; the model imports {opset}",
        )
    if newer := changed_since(node.proto, dict(model.opset_imports)):
        return Refusal("opset", f"ONNX Runtime does not know it: {newer}")
    if wrong := departure("ONNX Runtime", FAULTS, Use(node, model)):
        return wrong
    wanted = {port.name for port in model.outputs}
    for value in (*node.reads, *node.writes):
        kind = model.spec(value).type
        if not kind:
            if value not in model.consumers and value not in wanted:
                continue  # an optional output that nobody reads
            return Refusal(
                "dtype",
                f"the type of {value!r} is not known, so it cannot be handed to ONNX Runtime",
            )
        tensor = re.search(r"\btensor\((\w+)\)", kind)  # or that of a sequence's or map's values
        if (not tensor or tensor[1] not in FEEDABLE) and value not in model.constants:
            return Refusal("dtype", f"{value!r} is {kind}, which ONNX Runtime takes no arrays of")
    return None


def _skips_transform(use: Use) -> bool:
    """Whether a regressor of one target has a post_transform that is left out."""
    obeyed = ("NONE",) if use.node.op_type == "SVMRegressor" else ("NONE", "PROBIT")
    single = use.get("targets", use.get("n_targets", 1)) == 1
    return single and use.get("post_transform", "NONE") not in obeyed


def _scores_both(use: Use) -> bool:
    """Whether each of two classes has a score."""
    labels = use.get("classlabels_int64s", ()) or use.get("classlabels_strings", ())
    return len(labels) == len(set(use.get("class_ids", ()))) == 2


#: Each is a case of ONNX's backend suite whose expected output ONNX Runtime 1.31 misses, though it
#: loads the node.
FAULTS: Final = (
    Fault(
        "Attention",
        "the scores that it gives out are masked with the lowest float, not -infinity",
        lambda u: any(u.node.outputs[3:]) and u.get("is_causal") and u.get("qk_matmul_output_mode"),
    ),
    Fault(
        "Attention",
        "nonpad_kv_seqlen with a mask fails as it runs",
        lambda u: u.given(3) and u.given(6),
    ),
    Fault(
        "ConvInteger",
        "a zero point for each channel fails as it runs",
        lambda u: u.given(3) and u.model.spec(u.given(3)).shape not in ((), (1,)),
    ),
    Fault("MaxUnpool", "indices are read as positions in output_shape", lambda u: u.given(2)),
    Fault(
        "If Loop Scan",
        "weights that only bodies read are lost before 1.25",
        lambda u: (
            _VERSION < (1, 25)
            and any(
                u.model.constants[v].array.nbytes > _LOST_NBYTES
                for v in u.node.captures
                if v in u.model.constants
            )
        ),
    ),
    Fault(
        "LinearRegressor SVMRegressor TreeEnsembleRegressor",
        "post_transform of one target is left out",
        _skips_transform,
        domain="ai.onnx.ml",
    ),
    Fault(
        "TreeEnsembleClassifier",
        "where two classes have a score each, its labels are 0 and 1",
        _scores_both,
        domain="ai.onnx.ml",
    ),
)


def _question(node: Node, model: Model, provider: Provider) -> OrtQuestion:
    """Return the question about a node, with a model of it alone that ONNX Runtime reads."""
    # To its CPU provider nodes that differ in sizes are the same; another may want to know them.
    port = _any_size if provider.is_cpu else lambda spec: spec
    alone = lowered(single_node_model(node, model, lambda c: _shown(c, node), port))
    return OrtQuestion(
        node.op_type,
        alone.SerializeToString(deterministic=True),
        0,
        node.domain,
        [model.spec(value).type for value in node.reads],
        [model.spec(value).type for value in node.writes],
    )


def _any_size(spec: TensorSpec) -> TensorSpec:
    shape = spec.shape
    # How many sizes or axes there are says a rank; other sizes would only make nodes distinct.
    if shape is not None and (len(shape) != 1 or spec.element_type != "int64"):
        shape = (None,) * len(shape)
    return TensorSpec(spec.name, spec.type, shape)


def _shown(constant: Constant, node: Node) -> bool:
    array = constant.array
    if array.dtype.kind in "fc":
        return node.op_type in _FLOATS_MATTER and array.size <= _SHOWN_ELEMENTS
    return array.size <= _SHOWN_ELEMENTS or array.dtype == np.dtype(object)


def verdicts(questions: Sequence[Sequence[Any]], provider: Sequence[Any]) -> list[Verdict]:
    """Return what a provider says of each node; called in a process of its own."""
    asked = Provider(*provider)
    return [_try(OrtQuestion(*question), asked) for question in questions]


#: ONNX Runtime in a process of its own.
ASKED: Final = Questions("ONNX Runtime", verdicts)


def _answers(questions: Sequence[OrtQuestion], provider: Provider) -> list[Verdict]:
    if provider.name in onnxruntime.get_available_providers():
        return ASKED.verdicts(questions, provider)
    return [_try(question, provider) for question in questions]  # plugged into this process alone


def _try(question: OrtQuestion, provider: Provider) -> Verdict:
    try:
        groups = provider.open_asked(question.data).get_provider_graph_assignment_info()
    except Exception as error:  # whatever it raises is its reason
        return _refusal(question, error)
    if any(group.ep_name != provider.name for group in groups):
        return Refusal("no_kernel", f"{provider.name} leaves {question.op_type} to the CPU's")
    assigned = [part for group in groups for part in group.get_nodes()]
    if any(part.name == "node" for part in assigned):
        kernels = _kernel_types() if provider.is_cpu else {}
        types = {*question.reads, *question.writes}
        types -= kernels.get((question.domain, question.op_type), frozenset())
        cast = kernels and "tensor(float16)" in types
        return "computed in float32, with casts" if cast else None
    parts = ", ".join(dict.fromkeys(part.op_type for part in assigned))
    return f"decomposed into {parts}" if parts else "eliminated"


#: What a failed session says -> the code of the refusal; the first that matches.
_CODES: Final[tuple[tuple[str, RefusalCode], ...]] = (
    (r"ValidateOpsetForDomain|opset|Opset|IR version", "opset"),
    (r"is not a registered function/op|No Op registered|No opset import", "no_kernel"),
    (r"Type Error|is invalid|[Dd]ata type|type inference", "dtype"),
)


def _refusal(question: OrtQuestion, error: Exception) -> Refusal:
    text = ERRORS.reason(error)
    op_type = question.op_type
    if "Could not find an implementation" in text:
        if (question.domain, op_type) in _kernel_types():
            types = ", ".join(question.reads) or "no inputs"
            return Refusal("dtype", f"ONNX Runtime has no {op_type} kernel for {types}")
        return Refusal("no_kernel", f"ONNX Runtime has no {op_type} kernel")
    codes = (c for pattern, c in _CODES if re.search(pattern, text))
    code: RefusalCode = next(codes, "attribute")
    return Refusal(code, f"ONNX Runtime refuses {op_type}: {text}")


@cache
def _kernel_types() -> dict[tuple[str, str], frozenset[str]]:
    """Return the types that any kernel of an operator is registered for, if it can tell."""
    if provider_names():  # with libraries beside it, ONNX Runtime's own list ends the process
        return {}
    found: dict[tuple[str, str], set[str]] = {}
    for kernel in onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def():
        domain = "" if kernel.domain == "ai.onnx" else kernel.domain
        types = found.setdefault((domain, kernel.op_name), set())
        for allowed in kernel.type_constraints.values():
            types.update(allowed)
    return {key: frozenset(types) for key, types in found.items()}
