"""Conditions of OpenVINO's faults: which nodes each of them affects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from hetero.devices.faults.fault import NodeView
from hetero.devices.faults.openvino_integers import FLOATS, INT32, NARROWED, is_within
from hetero.devices.model.model import Model, Node

#: Operators that move elements without computing.
_MOVES: Final = frozenset(
    """
    Concat DepthToSpace Dropout Expand Flatten Gather Identity Pad Reshape Slice SpaceToDepth
    Split Squeeze Tile Transpose Unsqueeze
    """.split()  # noqa: SIM905 - a list takes a line per operator
)


def _reachable_nodes(view: NodeView, passes: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield the readers of a node's outputs, and those of every reader for which `passes` holds."""
    pending, seen = view.model.readers(view.node), set()
    while pending:
        node = pending.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        yield node
        if passes(node):
            pending += view.model.readers(node)


def _has_one_runtime_input(view: NodeView) -> Callable[[Node], bool]:
    """Return a predicate: whether all inputs of a node but one are constants."""
    return lambda node: len(view.model.request_dependent.intersection(node.reads)) == 1


def has_open_sizes(view: NodeView, position: int = 0, first_axis: int = 0) -> bool:
    """Return whether an input's shape is unknown, or has open sizes from `first_axis` on."""
    shape = view.input_shape(position)
    return shape is None or not all(isinstance(n, int) for n in shape[first_axis:])


def casts_floats_to_narrowed_integers(view: NodeView) -> bool:
    """Return whether a Cast makes 64-bit integers of floats that may not fit 32 bits."""
    output = view.node.outputs[0]
    if view.narrow or view.element_type(output) not in NARROWED:
        return False
    if is_within(output, view.ranges, INT32.max):
        return False
    return view.element_type(view.node.inputs[0]) in FLOATS


def fills_beyond_32_bits(view: NodeView) -> bool:
    """Return whether a ConstantOfShape's integer does not fit 32 bits."""
    value = view.attribute("value", None)
    return value is not None and value.dtype.kind in "iu" and abs(int(value.flat[0])) >= 2**31


def has_scales_along_open_axis(view: NodeView) -> bool:
    """Return whether the axis of several scales may have an open length."""
    if view.input_shape(1) in ((), (1,)):
        return False
    shape = view.input_shape(0) or ()
    axis = view.attribute("axis", 1)
    return not -len(shape) <= axis < len(shape) or not isinstance(shape[axis], int)


def has_negative_scales_along_axis(view: NodeView) -> bool:
    """Return whether several scales are constants, and one of them is negative."""
    constant = view.model.constants.get(view.input_name(1))
    return constant is not None and constant.array.size > 1 and bool((constant.array < 0).any())


def slopes_may_fit_channels(view: NodeView) -> bool:
    """Return whether a PRelu's slopes for the last axis may be as many as the channels."""
    shape, slopes = (view.input_shape(i) or () for i in (0, 1))
    return (
        len(shape) > 2
        and len(slopes) == 1
        and slopes != (1,)
        and (shape[1] == slopes[0] or not isinstance(shape[1], int))
    )


def has_constant_inputs(view: NodeView) -> bool:
    """Return whether all inputs depend on constants only."""
    return view.model.request_dependent.isdisjoint(view.node.reads)


def may_reduce_no_elements(view: NodeView) -> bool:
    """Return whether a reduction of floats reduces an axis that has, or may have, no elements."""
    shape = view.input_shape(0)
    if view.element_type(view.input_name(0)) not in FLOATS:
        return False
    if shape is None:
        return True
    constant = view.model.constants.get(view.input_name(1))
    axes = view.attribute("axes", ()) if constant is None else constant.array.ravel().tolist()
    sizes = [shape[axis] for axis in axes] if axes else shape
    return any(not isinstance(size, int) or size == 0 for size in sizes)


def reduced_axes_of_three(view: NodeView) -> list[int]:
    """Return the axes that a reduction of three axes reduces."""
    constant = view.model.constants.get(view.input_name(1))
    axes = constant.array.ravel().tolist() if constant else view.attribute("axes", ())
    return [axis % 3 for axis in axes]


def reduces_middle_axis_of_dequantised_values(view: NodeView) -> bool:
    """Return whether a reduction reduces the middle one of three axes of dequantised values."""
    producer = view.input_producer(0)
    is_dequantised = producer is not None and producer.op_type == "DequantizeLinear"
    has_three_axes = len(view.input_shape(0) or ()) == 3
    return is_dequantised and has_three_axes and reduced_axes_of_three(view) == [1]


def is_fused_with_constant_tensors(view: NodeView) -> bool:
    """Return whether a reduction of the first or last of three axes is near constant tensors.

    OpenVINO computes the elementwise nodes after such a reduction in the same step, and applies
    elements of their constants to the wrong positions. In quantised models it also moves nodes from
    before the reduction behind it.
    """
    model = view.model
    if len(view.input_shape(0) or ()) != 3:
        return False
    is_reduction = view.node.op_type.startswith("Reduce")
    if is_reduction and reduced_axes_of_three(view) not in ([0], [2]):
        return False

    def producers(node: Node) -> list[Node]:
        return [producer for value in node.reads if (producer := model.producer(value))]

    directions = (model.readers, producers) if is_quantised_model(model) else (model.readers,)
    for neighbours in directions:
        pending = neighbours(view.node)
        while pending:
            node = pending.pop()
            constants = [v for v in node.reads if v not in model.request_dependent]
            if len(constants) != len(node.reads) - 1:
                continue
            if any(model.spec(v).shape not in ((), (1,)) for v in constants):
                return True
            pending += neighbours(node)
    return False


def is_quantised_model(model: Model) -> bool:
    """Return whether a model quantises at run time, so that OpenVINO moves scales through it."""
    return any(node.op_type == "QuantizeLinear" for node in model.nodes)


def has_quantising_and_other_readers(view: NodeView) -> bool:
    """Return whether one reader quantises a node's output, and others or the user read it too."""
    readers = view.model.readers(view.node)
    is_output = any(port.name == view.node.outputs[0] for port in view.model.outputs)
    has_quantising_reader = any(reader.op_type == "QuantizeLinear" for reader in readers)
    return has_quantising_reader and len(readers) + is_output > 1


def reshapes_reduction_of_equal_rank(view: NodeView) -> bool:
    """Return whether a reduction that drops axes is reshaped to the same number of axes."""
    producer = view.input_producer(0)
    if producer is None or not producer.op_type.startswith("Reduce"):
        return False
    before, after = view.input_shape(0), view.model.spec(view.node.outputs[0]).shape
    if producer.attributes.get("keepdims", 1) or before == after:
        return False
    return before is None or after is None or len(before) == len(after)


def is_pointwise_with_strides_and_pads(view: NodeView) -> bool:
    """Return whether a convolution's kernel has one element, and strides and pads."""
    kernel = view.input_shape(1 if view.node.op_type == "Conv" else 3) or ()
    strides, pads = view.attribute("strides", (1,)), view.attribute("pads", (0,))
    return set(kernel[2:]) == {1} and max(strides) > 1 and any(pads)


def reads_table_dequantised_along_other_axis(view: NodeView) -> bool:
    """Return whether a constant table has scales along another axis than the first."""
    node = view.input_producer(0)
    if node is None or view.input_name(0) in view.model.request_dependent:
        return False
    return (
        node.op_type == "DequantizeLinear"
        and view.model.spec(node.inputs[1]).shape not in ((), (1,))
        and node.attributes.get("axis", 1) != 0
    )


def is_zero_constant(view: NodeView, position: int) -> bool:
    """Return whether an input is a constant of zeros."""
    constant = view.model.constants.get(view.input_name(position))
    return constant is not None and not constant.array.any()


def permutes_input_of_convolution(view: NodeView) -> bool:
    """Return whether a Gather permutes the channels of a Conv by a constant permutation.

    OpenVINO folds the inverse permutation into the weights, so those that are their own inverse are
    right.
    """
    constant = view.model.constants.get(view.input_name(1))
    if constant is None or constant.array.ndim != 1:
        return False
    length = constant.array.size
    indices = np.where(constant.array < 0, constant.array + length, constant.array)
    if not np.array_equal(np.sort(indices), np.arange(length)):
        return False
    if np.array_equal(indices[indices], np.arange(length)):
        return False
    nodes = _reachable_nodes(view, _has_one_runtime_input(view))
    return any(node.op_type == "Conv" for node in nodes)


def scales_negatively_before_quantisation(view: NodeView) -> bool:
    """Return whether a tensor with negative elements scales values that are then quantised.

    OpenVINO folds the scales into the quantisation if a size is open, and exchanges its limits for
    the wrong elements.
    """
    is_normalisation = view.node.op_type == "BatchNormalization"
    names = view.node.inputs[1:2] if is_normalisation else view.node.inputs
    constants = [view.model.constants[name].array for name in names if name in view.model.constants]
    if not any(array.size > 1 and (array < 0).any() for array in constants):
        return False
    inputs = range(2 if not is_normalisation else 1)
    if not any(has_open_sizes(view, position) for position in inputs):
        return False
    nodes = _reachable_nodes(view, lambda node: node.op_type in _MOVES)
    return any(node.op_type == "QuantizeLinear" for node in nodes)


def is_quantised_to_uint8(view: NodeView) -> bool:
    """Return whether a node's output is quantised to uint8, also after elementwise nodes."""
    nodes = _reachable_nodes(view, _has_one_runtime_input(view))
    return any(
        node.op_type == "QuantizeLinear" and view.element_type(node.outputs[0]) == "uint8"
        for node in nodes
    )


def last_window_may_start_in_padding(view: NodeView) -> bool:
    """Return whether ceil_mode may add a pooling window that starts in the end padding."""
    if not view.attribute("ceil_mode"):
        return False
    kernel = view.attribute("kernel_shape", ())
    rank = len(kernel)
    strides = view.attribute("strides", (1,) * rank)
    dilations = view.attribute("dilations", (1,) * rank)
    end_pads = view.attribute("pads", (0,) * 2 * rank)[rank:]
    return any(
        (k - 1) * d + 1 < s + p
        for k, d, s, p in zip(kernel, dilations, strides, end_pads, strict=True)
    )


def indices_may_be_shorter(view: NodeView) -> bool:
    """Return whether the indices of a GatherElements may be shorter than the data on other axes."""
    data, indices = view.input_shape(0), view.input_shape(1)
    if data is None or indices is None:
        return True
    axis = view.attribute("axis", 0) % max(len(data), 1)
    return any(
        i != axis and (length is None or length != indices[i]) for i, length in enumerate(data)
    )


def splits_open_axis(view: NodeView) -> bool:
    """Return whether num_outputs divides an axis of open length."""
    shape = view.input_shape(0)
    axis = view.attribute("axis", 0)
    return bool(view.attribute("num_outputs")) and (
        shape is None or not isinstance(shape[axis], int)
    )


def is_same_padded(view: NodeView) -> bool:
    """Return whether auto_pad is SAME_UPPER or SAME_LOWER."""
    return bool(view.attribute("auto_pad", "NOTSET").startswith("SAME"))
