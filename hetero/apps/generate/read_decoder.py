"""Read a decoder: KV caches become states, and a sampling node chooses the next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper

from hetero.apps.generate.decoder_ports import (
    KEY,
    Decoder,
    decoder_file,
    find_ports,
    find_states,
    step_shapes,
)
from hetero.apps.generate.merged_decoder import unmerge
from hetero.apps.generate.sampling import DOMAIN, OPSET, Sampling, sample_function
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.opset_conversion import upgrade_opset
from hetero.devices.model.reader import Source, published_folder, read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.unique_names import UniqueNames
from hetero.devices.model.variables import STATES, variables_of, with_states
from hetero.measure.sample_inputs import sample_metadata

#: Products with weights that compute each position by itself.
_PRODUCTS: Final = frozenset({"MatMul", "MatMulNBits"})
#: Elementwise operators that may follow: scales, biases, soft caps.
_ELEMENTWISE: Final = frozenset({"Add", "Sub", "Mul", "Div", "Tanh", "Cast", "Identity"})


def read_decoder(
    model: Source | Model,
    *,
    states: Mapping[str, str] | None = None,
    ports: Mapping[str, str] | None = None,
    eos: Sequence[int] | None = None,
    logits: bool = False,
) -> Model:
    """Read a decoder for `CompiledModel.generate`.

    KV caches become states, which stay on the devices that compute them. A node called ``sample``
    is added, which chooses the token; it is placed like any other node, so that only the token
    leaves the devices. Logits are computed for the newest position only.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or Model
        An export with KV caches as inputs and outputs, as optimum and onnxruntime-genai's builder
        write it, or its folder with a ``model.onnx``. ``config.json``, ``generation_config.json``
        and ``genai_config.json`` next to the file, or next to its folder ``onnx``, provide end
        tokens and context length.
    states : mapping of str to str, optional
        Input -> output that is its value in the next step, as for `Core.read_model`; needed if
        names do not show it.
    ports : mapping of str to str, optional
        Port -> role, needed if names do not show it: ``ids``, ``mask``, ``positions``,
        ``is_next``, ``past_length``, ``total_length``, ``num_logits``, ``source`` (output of an
        encoder) or ``logits``.
    eos : sequence of int, optional
        End-of-sequence tokens; replaces those of the configuration.
    logits : bool
        Whether the logits of the newest position are an output: [batch, 1, vocabulary].

    Returns
    -------
    Model
        For `Core.compile_model`.

    Raises
    ------
    ArgumentError
        A port is not recognised, or `ports` is invalid.
    ModelError
        It is not a model, or a configuration file cannot be read.
    TensorNameError, TensorTypeError, TensorShapeError
        `states` names ports that the model does not have, or that do not match.
    """
    model = decoder_file(model) if isinstance(model, str | Path) else model
    decoder_model = read_model(model)
    if states is None and STATES not in decoder_model.metadata:
        states = find_states(decoder_model)
    if states is not None:
        decoder_model = with_states(decoder_model, states)
    decoder_model = _without_sliding_caches(with_head_sizes(decoder_model))
    folder = published_folder(model) if isinstance(model, str | Path) else None
    decoder = find_ports(decoder_model, ports or {}, folder, eos)
    if decoder_model.opset_imports.get("", 0) < OPSET:
        decoder_model = upgrade_opset(decoder_model, OPSET)
    step_model = unmerge(decoder_model, decoder.is_next, decoder.sources)
    if step_model is decoder_model:
        decoder_model = _with_newest_logits(decoder_model, decoder)
        decoder_model = _with_cached_encoder(decoder_model, decoder)
    else:
        decoder_model = _with_newest_logits(step_model, decoder)
        decoder = replace(decoder, singly=True)
    return _with_sample_inputs(*_with_sampling(decoder_model, decoder, keep=logits))


def _with_sample_inputs(model: Model, decoder: Decoder) -> Model:
    """Declare the inputs of a decode step in the metadata, by which the model is measured."""
    values = {decoder.sampling: Sampling().row(decoder.vocabulary)}
    key, text = sample_metadata(step_shapes(model, decoder), values)
    header = onnx.ModelProto()
    header.CopyFrom(model.header)
    header.metadata_props.add(key=key, value=text)
    return model.replace(header=header)


def _with_sampling(model: Model, decoder: Decoder, *, keep: bool) -> tuple[Model, Decoder]:
    """Add the sampling node, recorded in the metadata; return the model and its ports."""
    free = UniqueNames.of_values(model)
    sampling, seen, token = map(free.make, ("sampling", "seen", "token"))
    proto = helper.make_node(
        "Sample",
        [decoder.logits, sampling, seen],
        [token],
        UniqueNames(model.node_names).make("sample"),
        domain=DOMAIN,
    )
    port = next(port for port in model.inputs if port.name == decoder.ids)
    batch = (port.shape or (None,))[0]
    header = onnx.ModelProto()
    header.CopyFrom(model.header)
    header.functions.append(sample_function(model.opset_imports[""]))
    header.opset_import.add(domain=DOMAIN, version=1)
    header.ir_version = max(header.ir_version, 8)  # the first with functions
    decoder = replace(decoder, token=token, sampling=sampling, seen=seen)
    header.metadata_props.add(key=KEY, value=decoder.text())
    outputs = [port for port in model.outputs if keep or port.name != decoder.logits]
    model = model.replace(
        header=header,
        nodes=[*model.nodes, Node.from_proto(proto)],
        inputs=[
            *model.inputs,
            TensorSpec(sampling, "tensor(float)", (batch, 6)),
            TensorSpec(seen, "tensor(int64)", (batch, "seen")),
        ],
        outputs=[TensorSpec(token, "tensor(int64)", (batch, 1)), *outputs],
    )
    return model, decoder


def with_head_sizes(model: Model) -> Model:
    """Set the head size in the shapes of KV caches, computed from the attention's inputs.

    onnxruntime-genai's builder leaves it open, but an empty cache needs it.
    """
    sizes: dict[str, int] = {}
    for node in model.nodes:
        if node.op_type == "GroupQueryAttention":
            width = (model.spec(node.inputs[0]).shape or (None,))[-1]
            heads = node.attributes["num_heads"]
            if not node.inputs[1]:  # one value holds queries, keys and values
                heads += 2 * node.attributes["kv_num_heads"]
            if isinstance(width, int):
                caches = (*node.inputs[3:5], *node.outputs[1:3])
                sizes |= dict.fromkeys(caches, width // heads)

    def with_size(port: TensorSpec) -> TensorSpec:
        shape = port.shape
        if port.name not in sizes or not shape or isinstance(shape[-1], int):
            return port
        return replace(port, shape=(*shape[:-1], sizes[port.name]))

    inputs, outputs = map(with_size, model.inputs), map(with_size, model.outputs)
    return model.replace(inputs=tuple(inputs), outputs=tuple(outputs)) if sizes else model


def _without_sliding_caches(model: Model) -> Model:
    """Make KV caches hold all tokens if they are limited to the attention window.

    The entries of a limited cache move at each step. The attention window itself stays.
    """
    window, nodes = "sliding_window_cache", list(model.nodes)
    limited_nodes = [node for node in nodes if node.attributes.get(window)]
    for node in limited_nodes:
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        proto.attribute.remove(next(a for a in proto.attribute if a.name == window))
        nodes[model.index_of[node.name]] = Node.from_proto(proto)
    return model.replace(nodes=nodes) if limited_nodes else model


def _with_cached_encoder(model: Model, decoder: Decoder) -> Model:
    """Compute the encoder's keys and values in the first step only, if branches compute them.

    optimum's merged decoders output unusable values for them in later steps.
    """
    pairs = [v for v in variables_of(model) if decoder.is_next and "encoder" in v.name]
    if not pairs:
        return model
    values, names = UniqueNames.of_values(model), UniqueNames(model.node_names)
    cached: dict[str, str] = {}
    nodes = list(model.nodes)
    for state, output in pairs:
        cached[output.name] = values.make(f"{output.name}/cached")
        branches = {}
        for branch, value in (("then_branch", state.name), ("else_branch", output.name)):
            result = values.make(f"{output.name}/{branch}")
            node = helper.make_node("Identity", [value], [result], result)
            port = onnx.ValueInfoProto(name=result)
            port.type.tensor_type.elem_type = state.to_proto().type.tensor_type.elem_type
            branches[branch] = helper.make_graph([node], result, [], [port])
        name = names.make(cached[output.name])
        proto = helper.make_node("If", [decoder.is_next], [cached[output.name]], name, **branches)
        nodes.append(Node.from_proto(proto))
    outputs = [replace(port, name=cached.get(port.name, port.name)) for port in model.outputs]
    states = {v.input.name: v.output.name for v in variables_of(model)}
    states = {name: cached.get(output, output) for name, output in states.items()}
    return with_states(model.replace(nodes=nodes, outputs=outputs), states)


def _with_newest_logits(model: Model, decoder: Decoder) -> Model:
    """Compute the logits of the newest position only, if the end of the graph allows it.

    The product with the vocabulary's weights then runs once per prompt.
    """
    value, last = decoder.logits, None
    while value in model.producers and len(model.consumers.get(value, ())) < 2:
        node = model.nodes[model.producers[value]]
        if node.op_type in _PRODUCTS and _is_weight(model, node):
            last, value = node, node.inputs[0]
            break
        variables = [name for name in node.inputs if name and name not in model.constants]
        if node.op_type not in _ELEMENTWISE or len(variables) != 1:
            break
        value = variables[0]
    if last is None:
        return model
    free = UniqueNames.of_values(model)
    names = [free.make(f"newest/{name}") for name in ("start", "end", "axis", "states")]
    ends = dict(zip(names, (-1, np.iinfo(np.int64).max, 1), strict=False))
    proto = helper.make_node(
        "Slice", [last.inputs[0], *ends], names[3:], UniqueNames(model.node_names).make("newest")
    )
    reader = onnx.NodeProto()
    reader.CopyFrom(last.proto)
    reader.input[0] = names[3]
    nodes, position = list(model.nodes), model.index_of[last.name]
    nodes[position : position + 1] = [Node.from_proto(proto), Node.from_proto(reader)]
    constants = {n: Constant(n, np.asarray([v], np.int64)) for n, v in ends.items()}
    outputs = [
        replace(port, shape=(*(port.shape or ())[:1], 1, decoder.vocabulary))
        if port.name == decoder.logits
        else port
        for port in model.outputs
    ]
    constants = {**model.constants, **constants}
    return model.replace(nodes=nodes, constants=constants, outputs=outputs)


def _is_weight(model: Model, product: Node) -> bool:
    """Whether a product's second input is a weight: a constant, or a matrix for all positions."""
    name = product.inputs[1]
    return name in model.constants or len(model.spec(name).shape or ()) == 2
