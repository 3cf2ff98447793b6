"""The plugin contract: what an author writes for a new device, and all that comes with it.

An author says what the device supports (`refuse`), how it compiles (`compile`) and how it runs
(`Program.run`); queries, properties, ports, requests, states, checks, profiling and export are
done here and in `compiled_model`. See the plugin developer guide's Plugin page.
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
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import COMMON_PROPERTIES, Config, PropertyTable
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.schema_validation import schema_violations
from hetero.devices.plugin.support import Refusal, Support
from hetero.devices.request.compiled_model import CompiledModel


class Plugin(ABC):
    """Base of all plugins.

    A subclass's constructor initialises the backend, or raises PluginLoadError naming what is
    missing and how to install it.
    """

    #: The device name's first part: ``CPU`` in ``CPU.0``. No dots, no colons.
    name: ClassVar[str]
    #: Its properties: `COMMON_PROPERTIES`, those of `OPTIONAL_PROPERTIES` that it obeys, its own.
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES
    #: Whether bare ``HETERO`` uses it; devices that only measure or simulate are asked for by name.
    automatic: ClassVar[bool] = True
    #: Whether outputs are what the model says; a device that simulates gives others.
    computes: ClassVar[bool] = True
    #: Whether its programs leave outputs in the device's memory where `RunContext.left` says so.
    leaves_outputs: ClassVar[bool] = False
    #: Place in a bare ``HETERO``, lower first: accelerators 10, fast runtimes 40, fallbacks 90.
    rank: ClassVar[int] = 50

    def __init__(self) -> None:
        self.configuration = Configuration(
            self.properties, self.name, read=self._read, check=self._check_device_id
        )
        self._lock = threading.Lock()
        #: What runs with EXCLUSIVE_ASYNC_REQUESTS hold, by device id.
        self._turns: dict[str, threading.Lock] = {}

    # What an author writes.

    @abstractmethod
    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Return why the device does not run `node`, or None if it does.

        Parameters
        ----------
        node : Node
            A node of `model`, which is what `transform_model` returned.
        model : Model
            For types (`model.spec(value)`), opsets and constants.
        config : mapping
            The effective configuration.
        """

    @abstractmethod
    def compile(self, model: Model, config: Config) -> Program:
        """Compile what `transform_model` returned; every node of it was accepted."""

    def transform_model(self, model: Model, config: Config) -> Model:
        """Return the model that the device really runs; nodes say what they stand for in `covers`.

        `query_model` and `compile_model` both call it, so that they cannot disagree. Unless a
        plugin does otherwise, literals become constants and all else stays.
        """
        return lift_constant_nodes(model)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Make a program from what `Program.export` gave; `model` has ports and no weights."""
        raise UnsupportedOperationError(f"{self.name} does not import compiled models")

    def note(self, node: Node, model: Model, config: Config) -> str | None:
        """Return how a supported node is run, where a reader of the query should know."""
        return None

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Return what needs the whole model at once, such as a dry run of the backend.

        Returns
        -------
        mapping of str to (Refusal or str)
            By node of the transformed `model`: why it is refused, or a note on one that is taken;
            `refuse` is still asked about nodes that are not refused here.
        """
        return {}

    def device_ids(self) -> tuple[str, ...]:
        """Return the ids of the devices here; ``CPU.0`` has id ``0``."""
        return ("0",)

    def version(self) -> str:
        """Return the plugin's version and its backend's."""
        return "0"

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return read-only properties whose values depend on the device, by name."""
        return {}

    def full_name(self, device_id: str) -> str:
        """Return a device's name for people."""
        return self.name

    def fingerprint(self, device_id: str) -> str:
        """Return what a compiled model depends on: architecture, driver, instruction set."""
        return self.name

    def close(self) -> None:  # noqa: B027 - most plugins hold nothing beyond their memory
        """Give back what the backend holds; whoever loaded the plugin calls it at its end, once.

        Its compiled models are closed before. A Ray actor's process ends with its plugin.
        """

    # What every plugin has.

    def query_model(self, model: Model, config: Config | None = None) -> Support:
        """Return which nodes of `model` the device runs, and why not the others.

        Nodes that break ONNX's definitions of their operators are refused first. The rest is
        transformed exactly as for compilation, and what is found is mapped back to the original
        names: a node merged into a supported and an unsupported one is unsupported, one that the
        transformation removed is supported, literals follow their consumers.
        """
        support, _ = self._judge(read_model(model), self.effective_config(config))
        return support

    def compile_model(self, model: Model, config: Config | None = None) -> CompiledModel:
        """Compile a model that the device supports whole.

        Raises
        ------
        UnsupportedNodesError
            Naming every node that it does not support, each with its reason.
        """
        model, effective = read_model(model), self.effective_config(config)
        support, transformed = self._judge(model, effective)
        if support.unsupported:
            lines = [
                f"  {name} ({model.nodes[model.index_of[name]].op_type}): {reason}"
                for name, reasons in support.unsupported.items()
                for reason in reasons.values()
            ]
            more = [f"  and {len(lines) - 20} more"] if len(lines) > 20 else []
            shown = "\n".join([*lines[:20], *more])
            raise UnsupportedNodesError(
                f"{self.name} does not support {len(lines)} of {len(model.nodes)} nodes of model "
                f"{model.name!r}:\n{shown}\nAdd a device that does, as in HETERO:{self.name},CPU.",
                unsupported=support.unsupported,
            )
        program = self.compile(transformed, effective)
        if not isinstance(program, Program):
            raise InferenceError(
                f"plugin {self.name}: compile returned {type(program).__name__}; it must return a "
                "devices.Program. That is a fault of the plugin.",
                device=self.name,
            )
        made = [model.specs.get(port.name, port) for port in model.outputs]
        return self._compiled(model, made, program, effective)

    def import_model(
        self, payload: Payload, model: Model, config: Config | None = None
    ) -> CompiledModel:
        """Make a compiled model from a payload; `model` gives its ports, whose shapes hold.

        Raises
        ------
        UnsupportedOperationError
            The plugin imports nothing.
        BlobError
            The payload is not one of this plugin's, or is damaged.
        """
        effective = self.effective_config(config)
        if not effective["ENABLE_MMAP"]:
            payload = payload.in_memory()
        try:
            program = self.load(payload, model, effective)
        except (BlobError, UnsupportedOperationError):
            raise
        except Exception as error:
            raise BlobError(
                f"{self.name} cannot import model {model.name!r}: {type(error).__name__}: {error}. "
                "It is damaged, or of another version; compile the model again."
            ) from error
        return self._compiled(model, model.outputs, program, effective)

    def effective_config(self, config: Config | None = None) -> dict[str, Any]:
        """Return defaults, then what `set_property` set, then `config`, checked and typed."""
        return self.configuration.effective(config)

    def set_property(self, config: Config) -> None:
        """Set defaults for models compiled later."""
        self.configuration.set(config)

    def get_property(self, name: str, device_id: str | None = None) -> Any:
        """Return a property's value, of the device that DEVICE_ID says where no other is named."""
        if device_id is None:
            device_id = str(self.configuration.get("DEVICE_ID"))
        else:
            self._check_device_id({"DEVICE_ID": device_id})
        return device_id if name == "DEVICE_ID" else self.configuration.get(name, device_id)

    def create_context(self, config: Config | None = None) -> RemoteContext:
        """Return a RemoteContext, for devices with memory of their own.

        Raises
        ------
        UnsupportedOperationError
            The device has none.
        """
        raise UnsupportedOperationError(f"{self.name} has no device memory to share")

    def _compiled(
        self, model: Model, made: Sequence[TensorSpec], program: Program, config: Config
    ) -> CompiledModel:
        device_id = config["DEVICE_ID"]
        device = f"{self.name}.{device_id}"
        turn = None
        if config["EXCLUSIVE_ASYNC_REQUESTS"]:
            with self._lock:
                turn = self._turns.setdefault(device_id, threading.Lock())

        def read(name: str, _: str) -> Any:
            return self.get_property(name, device_id)

        configuration = Configuration(
            self.properties, f"model {model.name!r} on {device}", config, read=read
        )
        return CompiledModel(
            model, program, made=made, device=device, configuration=configuration, turn=turn
        )

    def _read(self, name: str, device_id: str) -> Any:
        """Return the value on a device of a property that was not set."""
        row = self.properties[name]
        if not row.mutable:
            of_device = self.device_properties(device_id)
            if name in of_device:
                return of_device[name]
        match name:
            case "DEVICE_ID":
                return next(iter(self.device_ids()), row.default)
            case "SUPPORTED_PROPERTIES":
                return tuple(self.properties)
            case "CACHING_PROPERTIES":
                return self.properties.shaping
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
        """Refuse an id that is not one of the plugin's."""
        asked, ids = config.get("DEVICE_ID"), self.device_ids()
        if asked is not None and asked not in ids:
            raise UnknownDeviceError(
                f"{self.name} has no device {asked!r}; it has {', '.join(ids) or 'none'}.",
                device=f"{self.name}.{asked}",
            )

    def _judge(self, model: Model, config: Config) -> tuple[Support, Model]:
        """Ask about each transformed node; return the answers by original names, and the model."""
        device = f"{self.name}.{config['DEVICE_ID']}"
        refusals = schema_violations(model)
        transformed = self.transform_model(_without(model, refusals), config)
        prepared = self.prepare_query(transformed, config)
        notes: dict[str, str] = {}
        for node in transformed.nodes:
            known = prepared.get(node.name)
            refusal = (
                known if isinstance(known, Refusal) else self.refuse(node, transformed, config)
            )
            if refusal:
                refusals |= dict.fromkeys(node.covers, refusal)
                continue
            note = known if isinstance(known, str) else self.note(node, transformed, config)
            if note:
                notes |= dict.fromkeys(node.covers, note)
        for node in reversed(model.nodes):
            if node.is_constant:
                readers = [reader.name for reader in model.readers(node)]
                if readers and all(reader in refusals for reader in readers):
                    refusals[node.name] = refusals[readers[0]]
                elif readers:
                    refusals.pop(node.name, None)
        refused = {n: {device: refusals[n]} for n in model.node_names if n in refusals}
        support = Support(
            {n: device for n in model.node_names if n not in refusals},
            refused,
            refused,
            {n: notes[n] for n in model.node_names if n in notes and n not in refusals},
        )
        return support, transformed


def _without(model: Model, names: Collection[str]) -> Model:
    """Return the model without some nodes, giving out what those and its outputs take of it."""
    if not names:
        return model
    kept = [i for i, node in enumerate(model.nodes) if node.name not in names]
    made = {value for i in kept for value in model.nodes[i].writes}
    taken = [value for name in names for value in model.nodes[model.index_of[name]].reads]
    taken += [port.name for port in model.outputs]
    return model.extract(kept, [value for value in dict.fromkeys(taken) if value in made])
