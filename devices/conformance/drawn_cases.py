"""Random cases of single operators, derived from ONNX's backend suite and operator definitions.

A legal case is a case of the suite with random changes: other element types that the definition
allows, other numbers, other attribute values that occur in the suite, fewer optional inputs and
outputs, and another opset with the same definition. An older case is in an opset that may have
another definition. An invalid case violates one rule as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import OpSchema

from hetero.devices.conformance.onnx_suite import backend_cases
from hetero.devices.model.element_type import EXTENDED_DTYPES
from hetero.devices.model.model import Node

#: Newest opset that both oracles support.
NEWEST = 26
OLDEST = 7
#: Operators with random results, and those that need files or bodies.
EXCLUDED_OPERATORS = frozenset(
    (
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Dropout",
        "ImageDecoder",
        "If",
        "Loop",
        "Scan",
        "SequenceMap",
    )
)
_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)")
#: Inputs whose numbers must lie in a range or match other inputs.
_NO_DATA = frozenset(
    (
        "scales",
        "roi",
        "start",
        "limit",
        "delta",
        "sizes",
        "k",
        "split",
        "iou_threshold",
        "score_threshold",
        "lower_edge_hertz",
        "upper_edge_hertz",
    )
)
#: Largest difference of results relative to the largest value plus 1, by element type.
_TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-2}
#: The tolerance of the other float types, about the distance of their neighbouring numbers.
_COARSE_TOLERANCE = 0.3
_Option = OpSchema.FormalParameterOption


@dataclass(frozen=True)
class OperatorCase:
    """One operator with its attributes, inputs and requested outputs."""

    op_type: str
    domain: str
    opset: int
    attributes: dict[str, Any]
    inputs: tuple[Any, ...]
    outputs: tuple[str, ...]
    #: Changes to the suite's case, for the report.
    changes: tuple[str, ...] = ()
    is_ill_conditioned: bool = field(default=False)

    def __str__(self) -> str:
        inputs_text = ", ".join(_describe_value(x) for x in self.inputs)
        plain = {k: v for k, v in sorted(self.attributes.items()) if np.size(v) < 20}
        changes = "; ".join(self.changes)
        return f"{self.op_type}-{self.opset}({inputs_text}) {plain} [{changes}]"

    def model(self) -> onnx.ModelProto:
        """Return the case as a model of one node."""
        names = [f"x{i}" if x is not None else "" for i, x in enumerate(self.inputs)]
        node = helper.make_node(
            self.op_type,
            names,
            self.outputs,
            name="node",
            domain=self.domain,
            **{k: v for k, v in self.attributes.items() if v != ()},
        )
        graph = helper.make_graph(
            [node],
            "case",
            [_info(n, x) for n, x in zip(names, self.inputs, strict=True) if n],
            [helper.make_empty_tensor_value_info(name) for name in self.outputs if name],
        )
        imports = [helper.make_opsetid("", NEWEST if self.domain else self.opset)]
        if self.domain:
            imports.append(helper.make_opsetid(self.domain, self.opset))
        return helper.make_model(graph, opset_imports=imports, ir_version=11)

    def feeds(self) -> dict[str, Any]:
        """Return the inputs by name."""
        return {f"x{i}": x for i, x in enumerate(self.inputs) if x is not None}


@dataclass(frozen=True)
class _Seed:
    """A case of the suite with a single node."""

    node: Node
    opset: int
    inputs: tuple[Any, ...]


@cache
def seeds() -> dict[str, tuple[_Seed, ...]]:
    """Return the suite's cases of single operators, by operator."""
    cases_of: dict[str, list[_Seed]] = defaultdict(list)
    for case in backend_cases():
        if case.kind != "node" or len(case.model().graph.node) != 1:
            continue
        model = case.model()
        proto = model.graph.node[0]
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opset = next(e.version for e in model.opset_import if e.domain in (domain, proto.domain))
        if proto.op_type in EXCLUDED_OPERATORS or (not domain and opset > NEWEST):
            continue
        if "preview" in domain or any(a.HasField("g") for a in proto.attribute):
            continue
        arrays = iter(case.data_sets(model)[0][0])
        inputs = tuple(next(arrays) if name else None for name in proto.input)
        if sum(x.size for x in inputs if isinstance(x, np.ndarray)) < 20_000:
            cases_of[proto.op_type].append(_Seed(Node.from_proto(proto), opset, inputs))
    return {op_type: tuple(cases) for op_type, cases in sorted(cases_of.items())}


@cache
def _suite_values(op_type: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of each attribute of an operator in the suite."""
    values: dict[str, list[Any]] = defaultdict(list)
    for seed in seeds().get(op_type, ()):
        for name, value in seed.node.attributes.items():
            if not isinstance(value, np.ndarray) and value not in values[name]:
                values[name].append(value)
    return {name: tuple(options) for name, options in values.items()}


def _case(op_type: str, seed: _Seed, opset: int) -> OperatorCase:
    """Return a case of the suite in an opset."""
    attributes = {
        name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in seed.node.attributes.items()
    }
    return OperatorCase(
        op_type, seed.node.domain, opset, attributes, seed.inputs, seed.node.outputs
    )


def suite_cases(op_type: str) -> list[OperatorCase]:
    """Return the suite's cases of an operator."""
    return [_case(op_type, seed, seed.opset) for seed in seeds()[op_type]]


def random_case(random: np.random.Generator, op_types: Sequence[str] = ()) -> OperatorCase:
    """Return a random case that the operator's definition allows; oracles may still refuse it.

    `op_types`: the operators to choose from; by default those of the suite.
    """
    op_type = str(random.choice(op_types or list(seeds())))
    cases = seeds()[op_type]
    seed = cases[random.integers(len(cases))]
    schema = onnx.defs.get_schema(op_type, seed.opset, seed.node.domain)
    opset = seed.opset
    if not seed.node.domain and random.random() < 0.5:
        since = max(schema.since_version, OLDEST)
        opset = int(random.integers(since, max(seed.opset, since) + 1))
    return vary(_case(op_type, seed, opset), random)


def vary(case: OperatorCase, random: np.random.Generator) -> OperatorCase:
    """Return a case with random changes that the operator's definition allows."""
    schema = onnx.defs.get_schema(case.op_type, case.opset, case.domain)
    for change, chance in (
        (_change_type, 0.6),
        (_change_numbers, 0.8),
        (_change_attribute, 0.4),
        (_remove_optional, 0.15),
    ):
        if random.random() < chance:
            case = change(case, schema, random)
    return case


def older_case(random: np.random.Generator, op_types: Sequence[str] = ()) -> OperatorCase:
    """Return a random case in an older opset, which may define the operator otherwise.

    The case may be invalid there.
    """
    case = random_case(random, op_types)
    opset = int(random.integers(OLDEST, max(case.opset, OLDEST) + 1))
    return case if case.domain else replace(case, opset=opset)


def result_difference(actual: Any, expected: Any) -> str:
    """Describe the difference of two results; empty if it is within rounding."""
    if isinstance(expected, list) and isinstance(actual, list):
        if len(actual) != len(expected):
            return f"{len(actual)} items, not {len(expected)}"
        pairs = zip(actual, expected, strict=True)
        return next((text for a, e in pairs if (text := result_difference(a, e))), "")
    if not isinstance(expected, np.ndarray):
        return "" if type(actual) is type(expected) else f"{actual!r}, not {expected!r}"
    actual = np.asarray(actual)
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return f"{_describe_value(actual)}, not {_describe_value(expected)}"
    if expected.dtype.kind in "iubOUS":
        num_wrong = int(np.sum(actual != expected))
        return f"{num_wrong} of {expected.size} elements differ" if num_wrong else ""
    tolerance = _TOLERANCES.get(expected.dtype.name, _COARSE_TOLERANCE)
    actual, expected = (x.astype(np.float64) for x in (actual, expected))
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0) + 1
    if np.allclose(actual, expected, tolerance, tolerance * scale, equal_nan=True):
        return ""
    difference = np.nanmax(np.abs(actual - expected))
    return f"it differs by up to {difference:.3g}; the largest value is {scale - 1:.3g}"


def _formal_parameters(case: OperatorCase, schema: OpSchema) -> list[OpSchema.FormalParameter]:
    return [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(case.inputs))]


def _allowed_types(schema: OpSchema, type_str: str) -> list[str]:
    for constraint in schema.type_constraints:
        if constraint.type_param_str == type_str:
            return [name for name in constraint.allowed_type_strs if _dtype(name) is not None]
    return []


def _dtype(name: str) -> Any:
    """Return the dtype of ``tensor(...)``; None for other kinds and for complex numbers."""
    if not name.startswith("tensor(") or "complex" in name:
        return None
    number = TensorProto.DataType.Value(name[7:-1].upper())
    return np.dtype(object) if "string" in name else helper.tensor_dtype_to_np_dtype(number)


def _change_type(case: OperatorCase, schema: OpSchema, random: np.random.Generator) -> OperatorCase:
    """Change the element type of one type parameter."""
    formals = _formal_parameters(case, schema)
    choices = sorted({f.type_str for f in formals if len(_allowed_types(schema, f.type_str)) > 1})
    if not choices:
        return case
    parameter = str(random.choice(choices))
    names = _allowed_types(schema, parameter)
    common = [name for name in names if name in _FLOATS]
    name = str(random.choice(common if common and random.random() < 0.5 else names))
    to = _dtype(name)
    inputs = [
        _convert(x, to) if f.type_str == parameter else x
        for f, x in zip(formals, case.inputs, strict=True)
    ]
    return replace(case, inputs=tuple(inputs), changes=(*case.changes, f"{parameter}={name}"))


def _convert(x: Any, to: np.dtype) -> Any:
    if isinstance(x, list):
        return [_convert(item, to) for item in x]
    if not isinstance(x, np.ndarray) or x.dtype == to:
        return x
    if to.kind == "O":
        plain = x.astype(np.float32) if x.dtype in EXTENDED_DTYPES else x
        return plain.astype(str).astype(object)
    if x.dtype.kind in "OU":
        return np.arange(x.size).reshape(x.shape).astype(to)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x
        if to.kind in "u" and wide.dtype.kind in "fi":
            wide = abs(wide)
        return wide.astype(np.float32).astype(to) if to.kind == "V" else wide.astype(to)


def _change_numbers(
    case: OperatorCase, schema: OpSchema, random: np.random.Generator
) -> OperatorCase:
    """Change the numbers of data inputs, but not of sizes, axes and indices."""
    inputs, special = list(case.inputs), bool(random.random() < 0.12)
    for i, (formal, x) in enumerate(
        zip(_formal_parameters(case, schema), case.inputs, strict=True)
    ):
        if not isinstance(x, np.ndarray) or not x.size or x.dtype.kind in "OU":
            continue
        if x.dtype.kind in "iu" and not any(
            n in _FLOATS for n in _allowed_types(schema, formal.type_str)
        ):
            continue
        if formal.name in _NO_DATA:
            continue
        inputs[i] = _random_array(x, random, special)
    return replace(
        case, inputs=tuple(inputs), changes=(*case.changes, "special" if special else "numbers")
    )


def _random_array(x: np.ndarray, random: np.random.Generator, special: bool) -> np.ndarray:
    if x.dtype == bool:
        return random.random(x.shape) < 0.5
    if x.dtype.kind in "iu":
        least = -10 if x.dtype.kind == "i" else 0
        return random.integers(least, 11, x.shape).astype(x.dtype)
    numbers = random.standard_normal(x.shape) * float(random.choice([0.1, 1, 1, 3, 20]))
    if special:
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e15, -1.0])
        numbers = np.where(random.random(x.shape) < 0.2, random.choice(odd, x.shape), numbers)
    with np.errstate(all="ignore"):
        result: np.ndarray = numbers.astype(np.float32).astype(x.dtype)
    return result


def _change_attribute(
    case: OperatorCase, schema: OpSchema, random: np.random.Generator
) -> OperatorCase:
    """Set an attribute to another of its values in the suite, or remove it."""
    seen = {k: v for k, v in _suite_values(case.op_type).items() if k in schema.attributes}
    if not seen:
        return case
    name = str(random.choice(sorted(seen)))
    attributes = dict(case.attributes)
    value: Any = seen[name][random.integers(len(seen[name]))]
    if random.random() < 0.25 and not schema.attributes[name].required:
        value = attributes.pop(name, None)
        return replace(case, attributes=attributes, changes=(*case.changes, f"no {name}"))
    if isinstance(value, float):
        value = float(np.float32(value + random.normal()))
    attributes[name] = value
    return replace(case, attributes=attributes, changes=(*case.changes, f"{name}={value}"))


def _remove_optional(
    case: OperatorCase, schema: OpSchema, random: np.random.Generator
) -> OperatorCase:
    """Remove the last optional input or output."""
    formals = _formal_parameters(case, schema)
    if len(case.inputs) > 1 and formals[-1].option == _Option.Optional and random.random() < 0.5:
        inputs = case.inputs[:-1]
        return replace(case, inputs=inputs, changes=(*case.changes, f"no {formals[-1].name}"))
    if any(case.outputs[:-1]):
        options = [o.option for o in schema.outputs]
        if len(options) >= len(case.outputs) and options[len(case.outputs) - 1] == _Option.Optional:
            return replace(
                case, outputs=case.outputs[:-1], changes=(*case.changes, "fewer outputs")
            )
    return case


def invalid_case(random: np.random.Generator) -> OperatorCase:
    """Return a random case that violates one rule of its operator's definition."""
    while True:
        case = random_case(random)
        schema = onnx.defs.get_schema(case.op_type, case.opset, case.domain)
        way = (
            _set_invalid_type,
            _remove_required_input,
            _add_unknown_attribute,
            _set_invalid_attribute,
        )[random.integers(4)]
        if (ill := way(case, schema, random)) is not None:
            return replace(ill, is_ill_conditioned=True)


def _set_invalid_type(
    case: OperatorCase, schema: OpSchema, random: np.random.Generator
) -> OperatorCase | None:
    """Convert an input to an invalid type."""
    i = int(random.integers(len(case.inputs))) if case.inputs else 0
    if not case.inputs or not isinstance(case.inputs[i], np.ndarray):
        return None
    type_str = _formal_parameters(case, schema)[i].type_str
    allowed = set(_allowed_types(schema, type_str)) or {type_str}
    ill = [
        n
        for n in (
            "tensor(float)",
            "tensor(int64)",
            "tensor(bool)",
            "tensor(string)",
            "tensor(uint8)",
            "tensor(double)",
        )
        if n not in allowed
    ]
    if not ill:
        return None
    name = str(random.choice(ill))
    inputs = list(case.inputs)
    inputs[i] = _convert(inputs[i], _dtype(name))
    return replace(case, inputs=tuple(inputs), changes=(*case.changes, f"ill x{i}={name}"))


def _remove_required_input(
    case: OperatorCase, schema: OpSchema, random: np.random.Generator
) -> OperatorCase | None:
    if schema.min_input < 1 or len(case.inputs) < schema.min_input:
        return None
    inputs = case.inputs[: schema.min_input - 1]
    return replace(case, inputs=inputs, changes=(*case.changes, "too few inputs"))


def _add_unknown_attribute(
    case: OperatorCase, schema: OpSchema, random: np.random.Generator
) -> OperatorCase | None:
    attributes = case.attributes | {"unknown_name": 3}
    return replace(case, attributes=attributes, changes=(*case.changes, "unknown attribute"))


def _set_invalid_attribute(
    case: OperatorCase, schema: OpSchema, random: np.random.Generator
) -> OperatorCase | None:
    """Set an attribute to a value of another type."""
    names = [
        n
        for n, a in sorted(schema.attributes.items())
        if a.type in (OpSchema.AttrType.INT, OpSchema.AttrType.INTS)
    ]
    if not names:
        return None
    name = str(random.choice(names))
    attributes = case.attributes | {name: "nonsense"}
    return replace(case, attributes=attributes, changes=(*case.changes, f"ill {name}"))


def _info(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        element = value[0] if value else np.zeros(0, np.float32)
        kind = _info("", element).type
        kind.tensor_type.ClearField("shape")
        return helper.make_value_info(name, helper.make_sequence_type_proto(kind))
    if value.dtype.kind in "OU":
        return helper.make_tensor_value_info(name, TensorProto.STRING, value.shape)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
    )


def _describe_value(x: Any) -> str:
    if x is None:
        return "-"
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
