"""A compiled model under the name and version that clients request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.inference_request import InferenceRequest, RequestDocument
from hetero.apps.serve.statistics import ModelStatistics
from hetero.apps.serve.tensors import datatype_of, find_datatype
from hetero.apps.serve.tokenizer import PromptTokenizer
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import TensorNameError, TensorShapeError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.devices.request.target import Submission
from hetero.devices.request.tensor_conversion import convert
from hetero.devices.request.variable_states import RequestStates

#: The protocol's platform of ONNX models.
PLATFORM: Final = "onnx_onnxv1"


class ServedModel:
    """A compiled model under the name and version that clients request.

    Each request starts with the model's initial states: no state is kept between requests.

    `compiled`: the model; it closes when nothing refers to it any more.
    `folder`: the folder that may have its tokenizer.
    """

    def __init__(
        self, name: str, version: str, compiled: CompiledModel, folder: Path | None = None
    ) -> None:
        self.name: Final = name
        self.version: Final = version
        self.compiled: Final = compiled
        self.statistics: Final = ModelStatistics()
        self.tokenizer: Final = PromptTokenizer(folder)
        self._inputs = {port.name: port for port in compiled.inputs}
        self._optional_inputs = {port.name: port for port in compiled.optional_inputs}
        self._ports = self._inputs | self._optional_inputs
        self._outputs = tuple(compiled.outputs)
        self._datatypes = {name: datatype_of(port) for name, port in self._ports.items()}
        self.output_names: Final = tuple(port.name for port in self._outputs if datatype_of(port))
        #: Whether it has inputs of text, whose elements are decoded one by one.
        self.takes_text: Final = "BYTES" in self._datatypes.values()

    @property
    def is_ready(self) -> bool:
        """Whether its devices are up, or others can replace the ones that are lost."""
        return self.compiled.deployment.has_route

    def check(self, document: RequestDocument) -> None:
        """Compare a request's names, datatypes and shapes with the model's.

        This precedes the decoding of data, so that a request that does not fit costs nothing.
        """
        for tensor in document.inputs:
            port = self._ports.get(tensor.name)
            if port is None:
                raise self._unknown_name_error("input", tensor.name, self._ports)
            find_datatype(tensor.name, tensor.datatype)
            if tensor.datatype != (datatype := self._datatypes[tensor.name]):
                raise protocol_error(
                    f"input {tensor.name!r}: datatype {tensor.datatype}, expected {datatype}."
                )
            if not port.accepts(tuple(tensor.shape)):
                raise TensorShapeError(
                    f"input {tensor.name!r}: shape {tensor.shape}, expected {port}.",
                    port=tensor.name,
                )
        names = {tensor.name for tensor in document.inputs}
        for name, port in self._inputs.items():
            if name not in names:
                raise TensorNameError(f"input {name!r} ({port}) is missing.", name=name)
        for output in document.outputs or ():
            if output.name not in self.output_names:
                raise self._unknown_name_error("output", output.name, self.output_names)

    def _unknown_name_error(
        self, role: str, name: str, names: Sequence[str] | Mapping[str, Any]
    ) -> Exception:
        return TensorNameError(
            f"model {self.name!r} has no {role} {name!r}; expected one of "
            f"{', '.join(map(repr, names))}.",
            name=name,
        )

    def convert(self, request: InferenceRequest) -> dict[str, Value]:
        """Return the inputs of a checked request as devices take them."""
        values: dict[str, Value] = {
            name: convert(array, self._ports[name], copy=False)
            for name, array in request.inputs.items()
        }
        if variables := self.compiled.target.variables:
            values |= RequestStates(variables, tuple(self._inputs.values())).values_for(values)
        return values

    def submit(
        self, values: Mapping[str, Value], request: Request
    ) -> Submission | CompletedSubmission:
        """Start a request; see `hetero.scheduler.executor.Deployment.submit`."""
        return self.compiled.target.submit(values, request)

    def num_rows(self, values: Mapping[str, Value]) -> int:
        """Return the rows of a request: its first size, if the model leaves that open; or 1."""
        port = next(iter(self._inputs.values()), None)
        if port is None or not port.shape or isinstance(port.shape[0], int):
            return 1
        return int(np.shape(values[port.name])[0])

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """Return the protocol's metadata of the model."""
        return {
            "name": self.name,
            "versions": list(versions),
            "platform": PLATFORM,
            "inputs": [*map(_describe_port, self._ports.values())],
            "outputs": [*map(_describe_port, self._outputs)],
        }

    def config(self) -> dict[str, Any]:
        """Return the model's configuration in Triton's form."""

        def entry(port: TensorSpec) -> dict[str, Any]:
            described = _describe_port(port)
            datatype = described["datatype"]
            type_name = "STRING" if datatype == "BYTES" else datatype
            name, dims = port.name, described["shape"]
            return {"name": name, "data_type": f"TYPE_{type_name}", "dims": dims}

        devices = ",".join(self.compiled.get_property("EXECUTION_DEVICES"))
        return {
            "name": self.name,
            "platform": PLATFORM,
            "backend": "hetero",
            "max_batch_size": 0,  # dims include the batch size
            "input": [*map(entry, self._inputs.values())]
            + [{**entry(port), "optional": True} for port in self._optional_inputs.values()],
            "output": [*map(entry, self._outputs)],
            "parameters": {"EXECUTION_DEVICES": {"string_value": devices}},
        }


def _describe_port(port: TensorSpec) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in port.shape or ()]
    return {"name": port.name, "datatype": datatype_of(port), "shape": shape}
