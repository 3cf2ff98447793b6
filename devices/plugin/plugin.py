"""The plugin contract: base class of all plugins.

A plugin author implements `refuse` (support of a node), `compile` and `Program.run`. This class and
`DeviceModel` implement queries, properties, ports, checks, profiling and export. The structure
follows the Plugin page of OpenVINO's plugin developer guide.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from hetero.devices.errors import (
    BlobError,
    InferenceError,
    UnknownDeviceError,
    UnsupportedNodesError,
    UnsupportedOperationError,
)
from hetero.devices.model.constant_nodes import lift_constant_nodes
from hetero.devices.model.model import Model, Node
from hetero.devices.model.reader import read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.heap import releases_free_memory
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import COMMON_PROPERTIES, Config, PropertyTable
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.schema_validation import schema_violations
from hetero.devices.plugin.support import Refusal, Support
from hetero.devices.request.device_model import DeviceModel


class Plugin(ABC):
    """Base class of all plugins.

    The constructor of a subclass initializes the backend, or raises PluginLoadError with the
    missing dependency and the command that installs it.
    """

    #: First part of the device names: ``CPU`` in ``CPU.0``. No dots, no colons.
    name: ClassVar[str]
    #: `COMMON_PROPERTIES`, the supported `OPTIONAL_PROPERTIES`, and the plugin's own properties.
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES
    #: Whether bare ``HETERO`` includes the device; False for devices that only measure or simulate.
    automatic: ClassVar[bool] = True
    #: Whether the device computes the model's outputs; False for devices that only simulate.
    computes: ClassVar[bool] = True
    #: Whether programs can leave `RunContext.resident_outputs` in the device's memory.
    leaves_outputs: ClassVar[bool] = False
    #: The memory of its processes, for plans that fit.
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits()
    #: Position in bare ``HETERO``, lower first: accelerators 10, fast runtimes 40, fallbacks 90.
    rank: ClassVar[int] = 50

    def __init__(self) -> None:
        self.configuration = Configuration(
            self.properties, self.name, read=self._read, check=self._check_device_id
        )
        self._lock = threading.Lock()
        #: Locks of EXCLUSIVE_ASYNC_REQUESTS, by device id.
        self._run_locks: dict[str, threading.Lock] = {}

    # Methods that a plugin implements or overrides.

    @abstractmethod
    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Return the reason why the device does not support `node`, or None if it does.

        Parameters
        ----------
        node : Node
            A node of `model`.
        model : Model
            The result of `transform_model`, for types (`model.spec(value)`), opsets and constants.
        config : mapping
            The effective configuration.
        """

    @abstractmethod
    def compile(self, model: Model, config: Config) -> Program:
        """Compile the result of `transform_model`; the device supports all of its nodes."""

    def transform_model(self, model: Model, config: Config) -> Model:
        """Return the model that the device executes.

        `Node.covers` of its nodes lists the original nodes that they replace. `query_model` and
        `compile_model` both call this method, so that their results agree. By default, `Constant`
        nodes become constants of the model.
        """
        return lift_constant_nodes(model)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Return a program from the result of `Program.export`; `model` has no weights."""
        raise UnsupportedOperationError(f"{self.name} does not import compiled models")

    def note(self, node: Node, model: Model, config: Config) -> str | None:
        """Return a remark on the execution of a supported node for the query's result, or None."""
        return None

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Return results of a query that needs the whole model, such as a dry run of the backend.

        Returns
        -------
        mapping of str to (Refusal or str)
            Node of the transformed `model` -> its refusal, or a note on a supported node. `refuse`
            is still called for nodes that are not refused here.
        """
        return {}

    def device_ids(self) -> tuple[str, ...]:
        """Return the ids of the available devices; ``CPU.0`` has id ``0``."""
        return ("0",)

    def version(self) -> str:
        """Return the plugin's version and its backend's."""
        return "0"

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return read-only properties whose values depend on the device, by name."""
        return {}

    def full_name(self, device_id: str) -> str:
        """Return a device's descriptive name."""
        return self.name

    def fingerprint(self, device_id: str) -> str:
        """Return a text that identifies the hardware and software that compiled models depend on.

        Examples are the architecture, the driver and the instruction set.
        """
        return self.name

    def close(self) -> None:  # noqa: B027 - most plugins hold nothing beyond their memory
        """Release the backend's resources.

        The owner of the plugin calls this once, after closing all compiled models. In a Ray actor,
        the process ends afterwards.
        """

    # Methods that all plugins share.

    def query_model(self, model: Model, config: Config | None = None) -> Support:
        """Return the nodes of `model` that the device supports, and the refusals of the others.

        Nodes that violate ONNX's schema of their operator are refused first. The other nodes are
        transformed as for compilation, and the results are mapped back to the original nodes:

        - A node that is merged into both supported and unsupported nodes is unsupported.
        - A node that the transformation removes is supported.
        - A `Constant` node follows the nodes that read it.
        """
        support, _ = self._query_all(read_model(model), self.effective_config(config))
        return support

    def compile_model(self, model: Model, config: Config | None = None) -> DeviceModel:
        """Compile a model whose nodes the device all supports.

        Raises
        ------
        UnsupportedNodesError
            The device does not support some nodes; the error lists them with the reasons.
        """
        model, effective = read_model(model), self.effective_config(config)
        support, transformed_model = self._query_all(model, effective)
        if support.unsupported:
            lines = [
                f"  {name} ({model.nodes[model.index_of[name]].op_type}): {reason}"
                for name, reasons in support.unsupported.items()
                for reason in reasons.values()
            ]
            more = [f"  and {len(lines) - 20} more"] if len(lines) > 20 else []
            listing = "\n".join([*lines[:20], *more])
            raise UnsupportedNodesError(
                f"{self.name} does not support {len(lines)} of {len(model.nodes)} nodes of model "
                f"{model.name!r}:\n{listing}\nAdd a device that supports them, as in "
                f"HETERO:{self.name},CPU.",
                unsupported=support.unsupported,
            )
        with releases_free_memory():
            program = self.compile(transformed_model, effective)
        if not isinstance(program, Program):
            raise InferenceError(
                f"plugin {self.name}: expected a devices.Program from compile, got "
                f"{type(program).__name__}. Report this to the plugin's author.",
                device=self.name,
            )
        output_specs = [model.specs.get(port.name, port) for port in model.outputs]
        return self._compiled_model(model, output_specs, program, effective)

    def import_model(
        self, payload: Payload, model: Model, config: Config | None = None
    ) -> DeviceModel:
        """Return a compiled model from a payload; `model` has its ports, with reliable shapes.

        Raises
        ------
        UnsupportedOperationError
            The plugin does not support import.
        BlobError
            The payload is damaged or of another plugin.
        """
        effective = self.effective_config(config)
        if not effective["ENABLE_MMAP"]:
            payload = payload.in_memory()
        try:
            with releases_free_memory():
                program = self.load(payload, model, effective)
        except (BlobError, UnsupportedOperationError):
            raise
        except Exception as error:
            raise BlobError(
                f"{self.name} cannot import model {model.name!r}: {type(error).__name__}: {error}. "
                "The blob is damaged or of another version; compile the model again."
            ) from error
        return self._compiled_model(model, model.outputs, program, effective)

    def effective_config(self, config: Config | None = None) -> dict[str, Any]:
        """Return all mutable properties, checked and typed.

        `config` overrides the values of `set_property`, which override the defaults.
        """
        return self.configuration.effective(config)

    def set_property(self, config: Config) -> None:
        """Set default values for models that are compiled later."""
        self.configuration.set(config)

    def get_property(self, name: str, device_id: str | None = None) -> Any:
        """Return a property's value for a device, by default the device DEVICE_ID."""
        if device_id is None:
            device_id = str(self.configuration.get("DEVICE_ID"))
        else:
            self._check_device_id({"DEVICE_ID": device_id})
        return device_id if name == "DEVICE_ID" else self.configuration.get(name, device_id)

    def create_context(self, config: Config | None = None) -> RemoteContext:
        """Return a RemoteContext for the device's own memory.

        Raises
        ------
        UnsupportedOperationError
            The device has no memory of its own.
        """
        raise UnsupportedOperationError(f"{self.name} does not support remote tensors")

    def _compiled_model(
        self, model: Model, output_specs: Sequence[TensorSpec], program: Program, config: Config
    ) -> DeviceModel:
        device_id = config["DEVICE_ID"]
        device = f"{self.name}.{device_id}"
        run_lock = None
        if config["EXCLUSIVE_ASYNC_REQUESTS"]:
            with self._lock:
                run_lock = self._run_locks.setdefault(device_id, threading.Lock())

        def read(name: str, _: str) -> Any:
            return self.get_property(name, device_id)

        configuration = Configuration(
            self.properties, f"model {model.name!r} on {device}", config, read=read
        )
        return DeviceModel(
            model,
            program,
            output_specs=output_specs,
            device=device,
            configuration=configuration,
            run_lock=run_lock,
        )

    def _read(self, name: str, device_id: str) -> Any:
        """Return a device's value of an unset property."""
        row = self.properties[name]
        if not row.mutable:
            values = self.device_properties(device_id)
            if name in values:
                return values[name]
        match name:
            case "DEVICE_ID":
                return next(iter(self.device_ids()), row.default)
            case "SUPPORTED_PROPERTIES":
                return tuple(self.properties)
            case "CACHING_PROPERTIES":
                return self.properties.caching_properties
            case "AVAILABLE_DEVICES":
                return self.device_ids()
            case "FULL_DEVICE_NAME":
                return self.full_name(device_id)
            case "DEVICE_ARCHITECTURE":
                return self.fingerprint(device_id)
            case "EXECUTION_DEVICES":
                return tuple(f"{self.name}.{i}" for i in self.device_ids())
            case "OPTIMIZATION_CAPABILITIES":
                imports = type(self).load is not Plugin.load
                return (*row.default, "EXPORT_IMPORT") if imports else row.default
        return row.default

    def _check_device_id(self, config: Config) -> None:
        """Raise UnknownDeviceError if DEVICE_ID is not the id of a device."""
        device_id, ids = config.get("DEVICE_ID"), self.device_ids()
        if device_id is not None and device_id not in ids:
            raise UnknownDeviceError(
                f"{self.name} has no device {device_id!r}; its devices are "
                f"{', '.join(ids) or 'none'}.",
                device=f"{self.name}.{device_id}",
            )

    def _query_all(self, model: Model, config: Config) -> tuple[Support, Model]:
        """Query all nodes; return the support of the original nodes, and the transformed model."""
        device = f"{self.name}.{config['DEVICE_ID']}"
        refusals = schema_violations(model)
        transformed_model = self.transform_model(_remove_nodes(model, refusals), config)
        verdicts = self.prepare_query(transformed_model, config)
        notes: dict[str, str] = {}
        for node in transformed_model.nodes:
            verdict = verdicts.get(node.name)
            refusal = (
                verdict
                if isinstance(verdict, Refusal)
                else self.refuse(node, transformed_model, config)
            )
            if refusal:
                refusals |= dict.fromkeys(node.covers, refusal)
                continue
            note = (
                verdict if isinstance(verdict, str) else self.note(node, transformed_model, config)
            )
            if note:
                notes |= dict.fromkeys(node.covers, note)
        for node in reversed(model.nodes):
            if node.is_constant:
                readers = [reader.name for reader in model.readers(node)]
                if readers and all(reader in refusals for reader in readers):
                    refusals[node.name] = refusals[readers[0]]
                elif readers:
                    refusals.pop(node.name, None)
        unsupported = {n: {device: refusals[n]} for n in model.node_names if n in refusals}
        support = Support(
            {n: device for n in model.node_names if n not in refusals},
            unsupported,
            unsupported,
            {n: notes[n] for n in model.node_names if n in notes and n not in refusals},
        )
        return support, transformed_model


def _remove_nodes(model: Model, names: Collection[str]) -> Model:
    """Return the model without the named nodes; its outputs include the values that they read."""
    if not names:
        return model
    positions = [i for i, node in enumerate(model.nodes) if node.name not in names]
    computed_values = {value for i in positions for value in model.nodes[i].writes}
    values = [value for name in names for value in model.nodes[model.index_of[name]].reads]
    values += [port.name for port in model.outputs]
    outputs = [value for value in dict.fromkeys(values) if value in computed_values]
    return model.extract(positions, outputs)
