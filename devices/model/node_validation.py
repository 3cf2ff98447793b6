"""Checks of the names and tensors of nodes and their bodies; loading of external tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from hetero.devices.errors import ModelError
from hetero.devices.model.attributes import graphs_of
from hetero.devices.model.constant_nodes import constant_node_attribute
from hetero.devices.model.tensor_proto import PROTOBUF_NBYTES, check_tensor, tensor_array
from hetero.devices.model.tensor_spec import TensorSpec, check_text

#: Attribute types without tensors or graphs.
_PLAIN: Final = frozenset(
    (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.FLOATS)
) | {AttributeProto.STRING, AttributeProto.STRINGS}


def validate_nodes(nodes: Iterable[onnx.NodeProto], context: str, file: Path | None) -> None:
    """Check the names and tensors of nodes; load external tensors into the nodes, in place.

    Parameters and errors are those of `tensor_array`. A name that is not valid text raises
    ModelError.
    """
    for node in nodes:
        check_text((node.name, node.op_type, node.domain, node.overload), context)
        check_text((*node.input, *node.output), context)
        check_text((text for e in node.metadata_props for text in (e.key, e.value)), context)
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            constant_node_attribute(node)
        for attribute in node.attribute:
            check_text((attribute.name, attribute.ref_attr_name), context)
            if attribute.type not in _PLAIN:
                validate_attribute(attribute, f"{context}: node {node.name!r}", file)


def check_self_contained(model: onnx.ModelProto, stubs: Collection[str], context: str) -> None:
    """Raise ModelError if a model from a blob refers to a file.

    `stubs` are the weights of the main graph that the caller supplies as arrays.
    """
    graph = model.graph
    validate_nodes(graph.node, context, None)
    for function in model.functions:
        validate_nodes(function.node, context, None)
        for attribute in function.attribute_proto:
            validate_attribute(attribute, context, None)
    sparse = [part for s in graph.sparse_initializer for part in (s.values, s.indices)]
    for tensor in (*(t for t in graph.initializer if t.name not in stubs), *sparse):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor_array(tensor, context)


def validate_attribute(attribute: AttributeProto, context: str, file: Path | None) -> None:
    """Check the tensors and graphs of an attribute; see `validate_nodes`."""
    tensors, sparse = [*attribute.tensors], [*attribute.sparse_tensors]
    if attribute.HasField("t"):
        tensors.append(attribute.t)
    if attribute.HasField("sparse_tensor"):
        sparse.append(attribute.sparse_tensor)
    for graph in graphs_of(attribute):
        validate_nodes(graph.node, context, file)
        tensors += graph.initializer
        sparse += graph.sparse_initializer
        for port in (*graph.input, *graph.output, *graph.value_info):
            TensorSpec.from_proto(port)
    for tensor in (*tensors, *(part for s in sparse for part in (s.values, s.indices))):
        check_tensor(tensor, context)
        if tensor.data_location == TensorProto.EXTERNAL:
            array = tensor_array(tensor, context, file)
            if array.nbytes > PROTOBUF_NBYTES:
                raise ModelError(
                    f"{context}: tensor {tensor.name!r}: expected at most {PROTOBUF_NBYTES} bytes "
                    f"in a node, got {array.nbytes}. Make it an initializer of the main graph."
                )
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
