"""Base class of compiled models on one device and on several."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from hetero.devices.errors import PropertyError, UnknownPropertyError, UnsupportedOperationError
from hetero.devices.model.model import Model
from hetero.devices.model.ports import PortLookup
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable, visible_ports
from hetero.devices.plugin.program import ExecutedNode
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.results import Results
from hetero.devices.request.runtime_model import runtime_model
from hetero.devices.request.state_machine import State
from hetero.devices.request.target import RequestTarget
from hetero.devices.request.variable_states import VariableState


class BaseCompiledModel(PortLookup, ABC):
    """Base class of compiled models: ports, requests, calls and the runtime model."""

    def __init__(self, source: Model, variables: Sequence[Variable] = ()) -> None:
        self.source: Final = source
        self._inputs, self._outputs = visible_ports(source.inputs, source.outputs, variables)
        #: One request per calling thread, so that calls of different threads overlap.
        self._requests = threading.local()

    @property
    @abstractmethod
    def target(self) -> RequestTarget:
        """The target that runs the model's requests."""

    @abstractmethod
    def get_property(self, name: str) -> Any:
        """Return a property's value for this compiled model."""

    @abstractmethod
    def export_model(self) -> Any:
        """Return the compiled model in the form that an import accepts."""

    @abstractmethod
    def close(self) -> None:
        """Release the model's resources on its devices."""

    def __reduce__(self) -> NoReturn:
        raise UnsupportedOperationError(
            f"compiled model {self.name!r} uses devices of this process and cannot be copied or "
            "pickled. Pass the source model or the result of export_model instead."
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
        """Run once and return the outputs; see `InferRequest.infer` for the parameters.

        Every call needs all inputs, because an earlier call may be from another caller.
        """
        feeds = {} if inputs is None else inputs
        return self._own_request().infer(
            feeds, share_inputs, share_outputs, decode_strings=decode_strings
        )

    def query_state(self) -> tuple[VariableState, ...]:
        """Return the state variables of this thread's calls; see `InferRequest.query_state`."""
        return self._own_request().query_state()

    def reset_state(self) -> None:
        """Reset all state variables of this thread's calls to their initial state."""
        self._own_request().reset_state()

    def _own_request(self) -> InferRequest:
        """Return the request for this thread's calls."""
        own: InferRequest | None = getattr(self._requests, "own", None)
        if own is None or own.state is not State.IDLE:  # e.g. Ctrl-C interrupted the last call
            own = self._requests.own = InferRequest(self.target)
            own.priority = self._default_priority()
        return own

    def _default_priority(self) -> int:
        """Return the priority of new requests."""
        return 0

    def create_infer_request(self) -> InferRequest:
        """Return a new idle request."""
        request = InferRequest(self.target, self)
        request.priority = self._default_priority()
        return request

    def infer_new_request(self, inputs: Any = None) -> Results:
        """Run once in a new request."""
        return self.create_infer_request().infer(inputs)

    def release_memory(self) -> None:
        """Release the requests of direct calls, with their results."""
        self._requests = threading.local()

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the nodes of the runtime model, in execution order."""
        return self.target.executed_nodes()

    def get_runtime_model(self) -> Model:
        """Return the runtime model: a graph of the executed nodes.

        The metadata of a node contains ``layerType``, ``execOrder``, ``implType``,
        ``originalLayersNames`` (separated by commas) and ``execTimeMcs``: the average microseconds
        of profiled runs, or ``not_executed``.
        """
        times_s = self.target.node_times.averages_s()
        return runtime_model(self.source, self._executed_plans(), times_s)

    def _executed_plans(self) -> Sequence[Sequence[ExecutedNode]]:
        """Return the executed nodes of each replica of the model; here there is one."""
        return (self.executed_nodes(),)

    def set_property(self, config: Mapping[str, Any]) -> None:
        """Raise an error: a compiled model's properties are fixed.

        Raises
        ------
        UnknownPropertyError
            The property does not exist.
        UnsupportedOperationError
            The property exists, but cannot change.
        """
        for name in config:
            try:
                self.get_property(name)
            except UnknownPropertyError:
                raise
            except PropertyError:  # the property exists, with different values on its devices
                pass
        raise UnsupportedOperationError(
            f"a compiled model's properties are fixed; pass {dict(config)} to compile_model, and "
            "compile again."
        )
