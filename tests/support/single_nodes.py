"""Models of one node: every operator that ONNX defines, with every element type."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper
from onnx.defs import OpSchema

_Single = OpSchema.FormalParameterOption.Single
_KINDS = {
    "FLOAT": 1.0,
    "INT": 1,
    "STRING": "",
    "INTS": [1],
    "FLOATS": [1.0],
    "STRINGS": ["a"],
    "TENSOR": helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0]),
}


def schemas(opset: int) -> list[OpSchema]:
    """Return the standard operators of an operator set, in order of their names."""
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
    definitions = [
        onnx.defs.get_schema(name, opset) for name in sorted(names) if onnx.defs.has(name, opset)
    ]
    return [s for s in definitions if not s.deprecated]


def single_node_models(
    schema: OpSchema, opset: int, types: list[str], shape: list[int] | None = None
) -> Iterator[onnx.ModelProto]:
    """Yield a node for each element type; it applies to the type parameter of the first input.

    Other inputs are of the first type that the definition lists. Nodes with bodies are left out.
    `shape` applies to all inputs; by default it is unknown.
    """
    required = {n: a for n, a in schema.attributes.items() if a.required}
    if any(a.type.name not in _KINDS for a in required.values()) or not schema.inputs:
        return
    attributes = {n: _KINDS[a.type.name] for n, a in required.items()}
    parameters = [p for p in schema.inputs if p.option == _Single] or [schema.inputs[0]]
    parameters *= max(1, schema.min_input // len(parameters))
    outputs = [p for p in schema.outputs if p.option == _Single] or [schema.outputs[0]]
    for element_type in types:
        inputs = []
        for i, parameter in enumerate(parameters):
            kind = sorted(parameter.types)[0]
            if parameter.type_str == parameters[0].type_str:
                kind = f"tensor({element_type})"
            if not kind.startswith("tensor("):
                break
            number = TensorProto.DataType.Value(kind[7:-1].upper())
            inputs.append(helper.make_tensor_value_info(f"x{i}", number, shape))
        else:
            names = [f"y{i}" for i in range(max(1, len(outputs)))]
            node = helper.make_node(schema.name, [i.name for i in inputs], names, **attributes)
            values = [onnx.ValueInfoProto(name=name) for name in names]
            graph = helper.make_graph([node], "one", inputs, values)
            yield helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
            )
