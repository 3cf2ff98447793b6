"""A compiled model under the name and version that clients ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from hetero.apps.serve.datatypes import NAMES, datatype_of
from hetero.apps.serve.errors import refused
from hetero.apps.serve.inference_request import InferCall
from hetero.apps.serve.statistics import Statistics
from hetero.apps.serve.tokenizer import Texts
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import TensorNameError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.request.request import Request
from hetero.devices.request.tensor_conversion import convert
from hetero.devices.request.variable_states import RequestStates
from hetero.scheduler.executor import Submission

#: The protocol's word for ONNX models.
PLATFORM: Final = "onnx_onnxv1"


class ServedModel:
    """A compiled model that is served, by the name and version that clients ask for.

    Requests begin with the model's states at their beginning: nothing is kept between them.

    `compiled`: what runs it; closed once nobody holds it any more.
    `folder`: where its tokenizer may be.
    """

    def __init__(
        self, name: str, version: str, compiled: CompiledModel, folder: Path | None = None
    ) -> None:
        self.name: Final = name
        self.version: Final = version
        self.compiled: Final = compiled
        self.statistics: Final = Statistics()
        self.texts: Final = Texts(folder)
        self._inputs = tuple(compiled.inputs)
        self._outputs = tuple(compiled.outputs)
        self._optional = tuple(compiled.optional_inputs)
        self._datatypes = {p.name: datatype_of(p) for p in (*self._inputs, *self._optional)}
        self.output_names: Final = tuple(port.name for port in self._outputs if datatype_of(port))

    @property
    def is_ready(self) -> bool:
        """Whether there are devices for it: one that is lost is planned around where others are."""
        return self.compiled.deployment.has_route

    def values(self, call: InferCall) -> dict[str, Value]:
        """Return a call's inputs, checked, as the devices take them."""
        for name, array in call.inputs.items():
            wanted = self._datatypes.get(name)
            if wanted is None:
                raise TensorNameError(
                    f"model {self.name!r} has no input {name!r}; its inputs are "
                    f"{', '.join(map(repr, self._datatypes))}.",
                    name=name,
                )
            if NAMES[array.dtype] != wanted:
                raise refused(f"input {name!r} is {wanted}, got {NAMES[array.dtype]}.")
        for name in call.outputs:
            if name not in self.output_names:
                raise TensorNameError(
                    f"model {self.name!r} has no output {name!r}; its outputs are "
                    f"{', '.join(map(repr, self.output_names))}.",
                    name=name,
                )
        values: dict[str, Value] = {}
        for port in (*self._inputs, *self._optional):
            if port.name in call.inputs:
                values[port.name] = convert(call.inputs[port.name], port, copy=False)
            elif port not in self._optional:
                raise TensorNameError(f"input {port.name!r} ({port}) is missing.", name=port.name)
        if variables := self.compiled.target.variables:
            values |= RequestStates(variables, self._inputs).given(values)
        return values

    def submit(self, values: Mapping[str, Value], request: Request) -> Submission:
        """Start a request; see `hetero.scheduler.executor.Deployment.submit`."""
        return self.compiled.target.submit(values, request)

    def rows(self, values: Mapping[str, Value]) -> int:
        """Return how many inferences a request is: its rows, where inputs have open first sizes."""
        port = self._inputs[0] if self._inputs else None
        if port is None or not port.shape or isinstance(port.shape[0], int):
            return 1
        return int(np.shape(values[port.name])[0])

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """Return what the protocol tells of a model."""
        return {
            "name": self.name,
            "versions": list(versions),
            "platform": PLATFORM,
            "inputs": [*map(_port, (*self._inputs, *self._optional))],
            "outputs": [*map(_port, self._outputs)],
        }

    def config(self) -> dict[str, Any]:
        """Return Triton's configuration of the model, as far as there is one here."""

        def entry(port: TensorSpec) -> dict[str, Any]:
            told = _port(port)
            kind = "STRING" if told["datatype"] == "BYTES" else told["datatype"]
            return {"name": port.name, "data_type": f"TYPE_{kind}", "dims": told["shape"]}

        devices = ",".join(self.compiled.get_property("EXECUTION_DEVICES"))
        return {
            "name": self.name,
            "platform": PLATFORM,
            "backend": "hetero",
            "max_batch_size": 0,  # shapes have their batch, where there is one
            "input": [*map(entry, self._inputs)]
            + [{**entry(port), "optional": True} for port in self._optional],
            "output": [*map(entry, self._outputs)],
            "parameters": {"EXECUTION_DEVICES": {"string_value": devices}},
        }


def _port(port: TensorSpec) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in port.shape or ()]
    return {"name": port.name, "datatype": datatype_of(port), "shape": shape}
