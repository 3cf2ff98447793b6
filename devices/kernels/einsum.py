"""Einsum: products of two tensors at a time, each one matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from devices.kernels.element_types import Array, Xp, same_type
from devices.kernels.precision import wide
from devices.kernels.registry import op

Shape = tuple[int, ...]


class Pair(NamedTuple):
    """How two tensors are multiplied as stacks of matrices."""

    #: Axes of the first as (batch, own, summed), of the second as (batch, summed, own).
    axes: tuple[Shape, Shape]
    #: How many are of a batch, and how many are summed over.
    batch: int
    summed: int
    #: Where axes of the product (batch, first's own, second's own) are wanted.
    order: Shape

    def stacks(self, a: Array, b: Array) -> tuple[Array, Array, Shape]:
        """Return the matrices, views where they can be, and the shape of their product."""
        a, b = a.transpose(self.axes[0]), b.transpose(self.axes[1])
        first, last = self.batch, a.ndim - self.summed
        batch, summed = a.shape[:first], a.shape[last:]
        own = a.shape[first:last], b.shape[first + self.summed :]
        rows, columns, depth = prod(own[0]), prod(own[1]), prod(summed)
        made = (*batch, *own[0], *own[1])
        return a.reshape(*batch, rows, depth), b.reshape(*batch, depth, columns), made


def pairs(equation: str, shapes: Sequence[Shape]) -> list[Pair] | None:
    """Return the products that compute an equation from left to right, or None.

    None where there is `...`, a label twice in a term, one that only one operand has and the result
    has not, two neighbours without a common one, or a size of 1 that stands for another.
    """
    left, arrow, result = equation.partition("->")
    a, *others = left.split(",")
    labels = "".join([a, *others])
    if not arrow:
        result = "".join(sorted(c for c in set(labels) if labels.count(c) == 1))
    if len({*result}) != len(result) or not {*result}.issubset(labels):
        return None
    if "." in equation or [len(a), *map(len, others)] != [len(shape) for shape in shapes]:
        return None
    sizes = set(zip(labels, (size for shape in shapes for size in shape), strict=True))
    if len(sizes) != len(set(labels)) or any(len({*term}) != len(term) for term in (a, *others)):
        return None
    found = list[Pair]()
    for i, b in enumerate(others):
        wanted = {*result}.union(*others[i + 1 :])
        batch = [label for label in a if label in b and label in wanted]
        summed = [label for label in a if label in b and label not in wanted]
        own = [label for label in a if label not in b], [label for label in b if label not in a]
        if not (batch or summed) or not wanted.issuperset(own[0] + own[1]):
            return None
        axes = batch + own[0] + summed, batch + summed + own[1]
        made = batch + own[0] + own[1]
        to = result if i == len(others) - 1 else "".join(made)
        found.append(
            Pair(
                (tuple(map(a.index, axes[0])), tuple(map(b.index, axes[1]))),
                len(batch),
                len(summed),
                tuple(map(made.index, to)),
            )
        )
        a = to
    return found or None


@op("Einsum", since=12)
def einsum_12(xp: Xp, *inputs: Array, equation: str) -> Array:
    """Return the sum of products that `equation` names; `...` stands for broadcast axes."""
    dtype = inputs[0].dtype
    same_type(*inputs)
    terms = equation.replace(" ", "")
    inputs = wide(xp, *inputs)
    products = pairs(terms, [x.shape for x in inputs])
    if products is None:
        result = xp.asarray(xp.einsum(terms, *inputs, optimize=len(inputs) > 1))
        return result.astype(dtype, copy=False)
    result, *others = inputs
    for pair, other in zip(products, others, strict=True):
        a, b, shape = pair.stacks(result, other)
        result = xp.matmul(a, b).reshape(shape).transpose(pair.order)
    return result.astype(dtype, copy=False)
