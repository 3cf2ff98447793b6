"""A model compiled for one device: its ports, requests, properties, runtime model and export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from devices.model import Model
from devices.program import ExecutedNode, Payload, Program, RunContext, Value
from devices.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from devices.plugin import Plugin


class CompiledModel:
    """A program with names: made by `Plugin.compile_model` and `Plugin.import_model`.

    Parameters
    ----------
    plugin : Plugin
        Who compiled it.
    model : Model
        What was compiled: it gives the ports.
    program : Program
        What runs.
    config : mapping
        The effective configuration.
    """

    def __init__(
        self, plugin: Plugin, model: Model, program: Program, config: Mapping[str, Any]
    ) -> None:
        self.inputs: tuple[TensorSpec, ...] = model.inputs
        self.outputs: tuple[TensorSpec, ...] = model.outputs
        self.name = model.name
        self._plugin = plugin
        self._program = program
        self._config = dict(config)

    def run(self, inputs: Sequence[Value], context: RunContext | None = None) -> Sequence[Value]:
        """Run once, unchecked, in the calling thread: what a stage of a plan does."""
        return self._program.run(inputs, context or RunContext(self._config["PERF_COUNT"]))

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, in execution order."""
        return self._program.executed_nodes()

    def export(self) -> Payload:
        """Return the device's own form of the compiled model."""
        return self._program.export()

    def get_property(self, name: str) -> Any:
        """Return a property's value for this compiled model."""
        declared = self._plugin.properties[name]
        device = f"{self._plugin.name}.{self._config['DEVICE_ID']}"
        mine = {"NETWORK_NAME": self.name, "EXECUTION_DEVICES": (device,)}
        mine["OPTIMAL_NUMBER_OF_INFER_REQUESTS"] = max(1, self._config["NUM_STREAMS"])
        if name in mine:
            return mine[name]
        return self._config.get(name, declared.default)

    def close(self) -> None:
        """Give back what the device holds for this model."""
        self._program.close()
