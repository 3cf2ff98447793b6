"""Rows of the table of operators, and notations for their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final
from zlib import crc32

import numpy as np

from hetero.devices.conformance.drawn_cases import OperatorCase
from tests.support.kernel_oracle import ORT_NEWEST, opsets, run_onnxruntime, run_reference

#: Tolerances of sums of products.
SUMS: Final = {"rtol": 1e-4, "atol": 1e-5}


@dataclass(frozen=True)
class Random:
    """Random numbers of a shape: standard normal ones, or uniform ones between two limits."""

    shape: tuple[int, ...]
    limits: tuple[float, float] | None = None
    dtype: Any = np.float32

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        if np.dtype(self.dtype).kind in "iu":
            return rng.integers(*(self.limits or (-9, 10)), self.shape).astype(self.dtype)
        if self.limits:
            return np.asarray(rng.uniform(*self.limits, self.shape), self.dtype)
        return np.asarray(rng.standard_normal(self.shape), self.dtype)


@dataclass(frozen=True)
class Row:
    """Operators of equal behaviour, with several inputs or tuples of inputs.

    Each of them is combined with each combination of attributes. `attributes` maps a name to its
    values, of which None leaves the attribute out; a list holds whole combinations.
    """

    op_types: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] = ({},)
    oldest: int = 7
    newest: int = ORT_NEWEST
    num_outputs: int = 1
    rtol: float = 1e-5
    atol: float = 1e-6
    #: For operators that ONNX Runtime lacks, ONNX's reference evaluator is the oracle.
    use_reference: bool = False
    domain: str = ""
    #: Whether outputs consist of elements of the inputs of type float32, or of zeros.
    moves: bool = False
    #: Whether the operator maps each element to a finite number, so that networks may have it
    #: anywhere.
    elementwise: bool = False

    def versions(self) -> Iterator[tuple[str, int]]:
        """Yield each operator with each opset that changed it."""
        for op_type in self.op_types.split():
            for opset in opsets(op_type, self.oldest, self.newest, self.domain):
                yield op_type, opset

    def cases(self, op_type: str, opset: int) -> Iterator[OperatorCase]:
        """Yield the cases of one operator; its name and opset alone determine random inputs."""
        outputs = tuple(f"y{i}" for i in range(self.num_outputs))
        for inputs, attributes in product(self.inputs, self.combinations()):
            rng = np.random.default_rng(crc32(f"{op_type}-{opset}".encode()))
            group = inputs if isinstance(inputs, tuple) else (inputs,)
            values = tuple(x.draw(rng) if isinstance(x, Random) else x for x in group)
            yield OperatorCase(op_type, self.domain, opset, attributes, values, outputs)

    def expected_outputs(self, case: OperatorCase) -> list[Any]:
        """Return the oracle's outputs of a case."""
        run = run_reference if self.use_reference else run_onnxruntime
        return run(
            case.op_type,
            case.inputs,
            case.attributes,
            case.opset,
            self.domain,
            self.num_outputs,
        )

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield the combinations of attributes."""
        if not isinstance(self.attributes, Mapping):
            yield from map(dict, self.attributes)
            return
        for values in product(*self.attributes.values()):
            pairs = zip(self.attributes, values, strict=True)
            yield {name: value for name, value in pairs if value is not None}


def floats(*shape: int) -> Random:
    return Random(shape)


def uniform(low: float, high: float, *shape: int) -> Random:
    return Random(shape, (low, high))


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Random:
    return Random(shape, (low, high), dtype)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def scalar(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def shaped(*groups: Sequence[tuple[int, ...]]) -> list[tuple[Random, ...]]:
    """Return tuples of standard normal inputs of these shapes."""
    return [tuple(floats(*shape) for shape in group) for group in groups]


def with_ints(x: Any, *second_inputs: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return pairs of one first input with several second inputs, such as axes or sizes."""
    return [(x, ints(*values)) for values in second_inputs]
