"""What compiled models of one device and of many share: ports, requests and the runtime model."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from hetero.devices.errors import PropertyError, UnknownPropertyError, UnsupportedOperationError
from hetero.devices.model.model import Model
from hetero.devices.model.ports import Ports
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable, visible_ports
from hetero.devices.plugin.program import ExecutedNode
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.results import Results
from hetero.devices.request.runtime_model import runtime_model
from hetero.devices.request.state_machine import State
from hetero.devices.request.target import RequestTarget
from hetero.devices.request.variable_states import VariableState


class BaseCompiledModel(Ports, ABC):
    """A compiled model's face: ports, requests, calls, and what is executed of `source`."""

    def __init__(self, source: Model, variables: Sequence[Variable] = ()) -> None:
        self.source: Final = source
        self._inputs, self._outputs = visible_ports(source.inputs, source.outputs, variables)
        #: One request for each thread that calls the model, so that calls overlap.
        self._requests = threading.local()

    @property
    @abstractmethod
    def target(self) -> RequestTarget:
        """What its requests run on."""

    @abstractmethod
    def get_property(self, name: str) -> Any:
        """Return a property's value for this compiled model."""

    @abstractmethod
    def export_model(self) -> Any:
        """Return what an import makes the same model of."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the devices hold for the model."""

    def __reduce__(self) -> NoReturn:
        raise UnsupportedOperationError(
            f"compiled model {self.name!r} holds devices of this process and cannot be copied or "
            "pickled; pass the model on and compile it there, or what export_model writes."
        )

    @property
    def name(self) -> str:
        """The model's name."""
        return self.source.name

    @property
    def inputs(self) -> list[TensorSpec]:
        """The input ports."""
        return list(self._inputs)

    @property
    def outputs(self) -> list[TensorSpec]:
        """The output ports."""
        return list(self._outputs)

    def __call__(
        self,
        inputs: Any = None,
        share_inputs: bool = True,
        share_outputs: bool = False,
        *,
        decode_strings: bool = True,
    ) -> Results:
        """Run once and return the outputs; see `InferRequest.infer` for what `inputs` may be.

        Nothing is taken from an earlier call, which may have been another caller's.
        """
        given = {} if inputs is None else inputs
        return self._own_request().infer(
            given, share_inputs, share_outputs, decode_strings=decode_strings
        )

    def query_state(self) -> tuple[VariableState, ...]:
        """Return the variables of this thread's calls; see `InferRequest.query_state`."""
        return self._own_request().query_state()

    def reset_state(self) -> None:
        """Have this thread's next call begin with every variable at its beginning."""
        self._own_request().reset_state()

    def _own_request(self) -> InferRequest:
        """Return the request behind this thread's calls."""
        own: InferRequest | None = getattr(self._requests, "own", None)
        if own is None or own.state is not State.IDLE:  # the last call was given up, by Ctrl-C say
            own = self._requests.own = InferRequest(self.target)
        return own

    def create_infer_request(self) -> InferRequest:
        """Return a new request, idle."""
        return InferRequest(self.target, self)

    def infer_new_request(self, inputs: Any = None) -> Results:
        """Run once in a request of its own."""
        return self.create_infer_request().infer(inputs)

    def release_memory(self) -> None:
        """Drop the requests behind `compiled_model(...)` and the results they hold."""
        self._requests = threading.local()

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model's rows, in execution order."""
        return self.target.executed_nodes()

    def get_runtime_model(self) -> Model:
        """Return a graph of what is executed.

        Each node's metadata has ``layerType``, ``execOrder``, ``implType``,
        ``originalLayersNames`` (joined by commas) and ``execTimeMcs``: microseconds, the average
        over profiled runs of its requests, or ``not_executed``.
        """
        times_s = self.target.node_times.averages_s()
        return runtime_model(self.source, self._executed_plans(), times_s)

    def _executed_plans(self) -> Sequence[Sequence[ExecutedNode]]:
        """Return the rows of each plan that runs the whole model: one has all rows."""
        return (self.executed_nodes(),)

    def set_property(self, config: Mapping[str, Any]) -> None:
        """Refuse: a compiled model's properties are those it was compiled with.

        Raises
        ------
        UnknownPropertyError
            There is no such property.
        UnsupportedOperationError
            There is.
        """
        for name in config:
            try:
                self.get_property(name)
            except UnknownPropertyError:
                raise
            except PropertyError:  # its devices differ in it
                pass
        raise UnsupportedOperationError(
            f"a compiled model's properties are fixed; give {dict(config)} to compile_model and "
            "compile again."
        )
