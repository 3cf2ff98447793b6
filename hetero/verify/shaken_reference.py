"""The reference with rounding noise: each operator's floats are moved by a unit in the last place.

The difference from the plain reference is what rounding alone can do to the model's values, as in
discrete stochastic arithmetic. Shaking only the inputs would miss it: layers with equal weights
compute equal scores, which a vendor that adds in another order tells apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from hetero.devices.cpu.plugin import CPUPlugin, CPUProgram
from hetero.devices.interpreter.backend import ArrayBackend
from hetero.devices.kernels import Kernel
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config, Property, PropertyTable
from hetero.verify.float_values import is_float

#: Name of the property with the unit in the last place, relative to a value.
UNIT: Final = "ROUNDING_UNIT"
#: Number of random signs, which repeat; a prime, so that they do not follow the rows of a tensor.
_NUM_SIGNS: Final = 65521
#: Operators whose rounding error is relative to their largest result: each sums all of a signal.
_SPECTRA: Final = frozenset({"DFT", "STFT"})
#: Steps of a quantised range. Devices may compute a step as a fraction of the range, as OpenVINO's
#: FakeQuantize does, so its rounding error is relative to the range.
_NUM_STEPS: Final = 256
#: Values of `accuracy_level` with which a MatMulNBits may convert its input to float16, bfloat16 or
#: 8 bits, and a quarter of the largest error of this, relative to the largest element of a block:
#: the tolerance is a multiple of the noise.
#: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
_ACCURACIES: Final = {2: 2.0**-13, 3: 2.0**-10, 4: 2.0**-10}


class Shaker:
    """Moves floats by a unit in the last place, up or down at random."""

    def __init__(self, unit: float) -> None:
        self._rng = np.random.default_rng(0)
        self._signs = self._rng.choice((-1.0, 1.0), _NUM_SIGNS)
        self._factors = 1 + unit * self._signs
        #: Integers up to this are results of counting, which every device computes exactly.
        self._largest_count = 1 / unit / 8

    def __call__(self, value: Value, *, exact_step: float = 1.0) -> Value:
        """Return a value with moved floats; values inside sequences stay.

        `exact_step`: small multiples of it stay; 0 for none.
        """
        if not is_float(value) or not value.size:
            return value
        wide = np.asarray(value, np.float64)
        start = int(self._rng.integers(_NUM_SIGNS))
        noisy = wide * np.resize(np.roll(self._factors, start), wide.shape)
        if exact_step:
            steps = wide / exact_step
            is_exact = (steps == np.rint(steps)) & (np.abs(wide) < self._largest_count)
            noisy = np.where(is_exact, wide, noisy)
        return np.asarray(noisy).astype(value.dtype)

    def move_in_blocks(self, value: np.ndarray, block_size: int, unit: float) -> np.ndarray:
        """Return values, each moved by `unit` of the largest one of its block of the last axis."""
        if not value.size:
            return value
        wide = np.asarray(value, np.float64)
        length = wide.shape[-1]
        largest = np.maximum.reduceat(np.abs(wide), range(0, length, block_size), axis=-1)
        changes = np.repeat(largest, block_size, axis=-1)[..., :length] * unit
        return np.asarray(wide + np.resize(self._signs, wide.shape) * changes).astype(value.dtype)

    def move_by_largest(self, value: np.ndarray) -> np.ndarray:
        """Return values, each moved by a unit in the last place of the largest one."""
        return self.move_by_unit_of(_largest_magnitude(value), value)

    def move_by_unit_of(self, magnitude: float, value: np.ndarray) -> np.ndarray:
        """Return values, each moved by a unit in the last place of a magnitude."""
        start = int(self._rng.integers(_NUM_SIGNS))
        wide = np.asarray(value, np.float64)
        units = np.resize(np.roll(self._factors - 1, start), wide.shape)
        return np.asarray(wide + units * magnitude).astype(value.dtype)


def _largest_magnitude(value: np.ndarray) -> float:
    """Return the largest magnitude of finite values; 0 if there are none."""
    wide = np.asarray(value, np.float64)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))


class _ShakenBackend(ArrayBackend):
    """numpy, with kernels whose results are shaken."""

    shaker: Shaker

    def function(
        self, kernel: Kernel, keywords: Mapping[str, Any], on_host: bool
    ) -> Callable[..., Any]:
        """Return the kernel as a function that shakes its results."""
        plain, shaker = super().function(kernel, keywords, on_host), self.shaker
        quantises = kernel.op_type == "QuantizeLinear"
        accuracy = _ACCURACIES.get(keywords.get("accuracy_level", 0))
        if kernel.op_type in _SPECTRA:
            return lambda *arguments: shaker.move_by_largest(plain(*arguments))

        def call_shaken(*arguments: Any, **bodies: Any) -> Any:
            if quantises:  # a value halfway between two steps may round to either
                x, scale, *others = arguments
                x = shaker(x, exact_step=0)
                if is_float(x):
                    x = shaker.move_by_unit_of(_NUM_STEPS * _largest_magnitude(scale), x)
                arguments = (x, scale, *others)
            if accuracy is not None:
                a = shaker.move_in_blocks(arguments[0], keywords["block_size"], accuracy)
                arguments = (a, *arguments[1:])
            result = plain(*arguments, **bodies)
            return tuple(map(shaker, result)) if isinstance(result, tuple) else shaker(result)

        return call_shaken


class _ShakenProgram(CPUProgram):
    """An interpreted model whose inputs are shaken as well."""

    def __init__(self, model: Model, threads: int, unit: float) -> None:
        backend = _ShakenBackend("numpy", np)
        self._shaker = Shaker(unit)
        object.__setattr__(backend, "shaker", self._shaker)
        super().__init__(model, threads, backend)

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs with rounding noise."""
        with np.errstate(all="ignore"):
            # No computation made an input inexact, so ONNX defines how a tie of it is rounded.
            shaken_inputs = [self._shaker(value, exact_step=0.5) for value in inputs]
        return super().run(shaken_inputs, context)


class ShakenReference(CPUPlugin):
    """The reference device with rounding noise."""

    properties: ClassVar[PropertyTable] = CPUPlugin.properties.extended(
        Property(UNIT, float, 2.0**-23, True, "Unit in the last place, relative to a value.")
    )

    def compile(self, model: Model, config: Config) -> Program:
        """Return an interpreted program with rounding noise."""
        return _ShakenProgram(model, config["INFERENCE_NUM_THREADS"], config[UNIT])
