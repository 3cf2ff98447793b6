"""The OV device: OpenVINO, with the names of its devices as device ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hetero.devices.errors import PluginLoadError
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.install_command import install_command
from hetero.devices.plugin.memory_traits import Copies, MemoryTraits
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import Config, PropertyTable
from hetero.devices.plugin.support import Refusal

try:
    import openvino
except ImportError as error:
    raise PluginLoadError(
        f"device OV needs OpenVINO, which is not installed; {install_command('openvino')}.",
        device="OV",
    ) from error

from hetero.devices.openvino.conversion import convert
from hetero.devices.openvino.errors import ERRORS
from hetero.devices.openvino.executed_nodes import executed_nodes, operator_owners
from hetero.devices.openvino.input_limits import InputLimits, find_limits, without_needless_length
from hetero.devices.openvino.program import (
    PAYLOAD_FORMAT,
    Interface,
    OpenVinoProgram,
    imported_interface,
)
from hetero.devices.openvino.query import OpenVinoQuery
from hetero.devices.openvino.runtime import (
    compile_options,
    core,
    device_ids,
    property_table,
    read_only_properties,
)


class OpenVinoPlugin(Plugin):
    """OpenVINO.

    A query converts one small model per distinct combination of operator, attributes, types and
    shapes, and caches the results. It refuses nodes with known faults.
    """

    name: ClassVar[str] = "OV"
    rank: ClassVar[int] = 45
    #: Measured with OpenVINO 2026.4: an idle process on Ray (161 MB) with its channels, the first
    #: model, and 30 models of 0.1 to 350 MB. The model and the plugin's layouts keep a copy of the
    #: weights each; two to four more exist while it compiles. Each node has generated code.
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits(
        runtime_nbytes=165_000_000,
        library_nbytes=19_000_000,
        copied_operators=None,
        weight_copies=Copies(2.1, 1.0),
        compile_copies=Copies(2.2, 0.0),
        convolution_compile_copies=Copies(4.0, 0.3),
        values_factor=2.0,
        node_nbytes=60_000,
        keeps_values=True,
        overwrites_inputs=True,
    )
    properties: ClassVar[PropertyTable] = property_table()

    def __init__(self) -> None:
        super().__init__()
        self._device_ids = device_ids()  # asking OpenVINO takes 0.5 ms
        if not self._device_ids:
            raise PluginLoadError(
                "OpenVINO finds no device on this machine; check its drivers.", device=self.name
            )
        self._query = OpenVinoQuery()

    def device_ids(self) -> tuple[str, ...]:
        """Return the names of OpenVINO's devices."""
        return self._device_ids

    def effective_config(self, config: Config | None = None) -> dict[str, Any]:
        """Return the options; the hint THROUGHPUT sets NUM_STREAMS to the device's maximum."""
        effective = super().effective_config(config)
        explicit_options = {**self.configuration.values, **(config or {})}
        has_hint = effective.get("PERFORMANCE_HINT") == "THROUGHPUT"
        if has_hint and "NUM_STREAMS" not in explicit_options:
            device_properties = read_only_properties(effective["DEVICE_ID"])
            effective["NUM_STREAMS"] = device_properties.get("RANGE_FOR_STREAMS", (1, 1))[-1]
        return effective

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Query OpenVINO for every node."""
        return self._query.query(model, config["DEVICE_ID"], config["OV_NARROW_INTEGERS"])

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Return None: `prepare_query` returns the refusals of all nodes."""
        return None

    def compile(self, model: Model, config: Config) -> Program:
        """Compile the whole model; DeviceError if OpenVINO fails despite the query."""
        try:
            return self._compile(model, config)
        except RuntimeError as error:
            summary = f"OpenVINO cannot compile model {model.name!r}"
            raise ERRORS.compile_error(summary, error, self.name) from error

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Import OpenVINO's blob; BlobError if another device exported the payload."""
        payload.check_format(PAYLOAD_FORMAT, model.name)
        interface, blob, nodes = imported_interface(
            payload, [port.name for port in model.inputs], [port.name for port in model.outputs]
        )

        def open_compiled(profile: bool) -> openvino.CompiledModel:
            return core().import_model(blob, *self._target(config, profile))

        return OpenVinoProgram(interface, open_compiled, lambda _: nodes, config["PERF_COUNT"])

    def version(self) -> str:
        """Return OpenVINO's version with its build."""
        return str(openvino.get_version())

    def full_name(self, device_id: str) -> str:
        """Return OpenVINO's version and its name of the device."""
        name = read_only_properties(device_id)["FULL_DEVICE_NAME"]
        return f"OpenVINO {openvino.__version__.partition('-')[0]} on {name}"

    def fingerprint(self, device_id: str) -> str:
        """Return the versions, names and capabilities that a blob depends on."""
        values = {
            name: value
            for name, value in read_only_properties(device_id).items()
            if name.endswith(("_VERSION", "_ARCHITECTURE", "_CAPABILITIES", "_DEVICE_NAME"))
        }
        return f"openvino-{self.version()}-{device_id}-{sorted(values.items())}"

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return OpenVINO's read-only properties of the device."""
        own_names = ("AVAILABLE_DEVICES", "EXECUTION_DEVICES", "FULL_DEVICE_NAME")
        return {n: v for n, v in read_only_properties(device_id).items() if n not in own_names}

    def _compile(self, model: Model, config: Config) -> Program:
        names = [port.name for port in model.outputs]
        computed_outputs = [name for name in dict.fromkeys(names) if name in model.producers]
        part = model.extract(range(len(model.nodes)), computed_outputs)
        source, inputs, aliases = convert(part)
        owners = operator_owners(part, source)
        sources = [source]

        def open_compiled(profile: bool) -> openvino.CompiledModel:
            # The converted model is freed after its first use. A second one, with or without
            # profiling, is rarely needed.
            source = sources.pop() if sources else convert(part)[0]
            return core().compile_model(source, *self._target(config, profile))

        narrow = config["OV_NARROW_INTEGERS"]
        limits = find_limits(part) if narrow == "CHECKED" else InputLimits()
        interface = Interface(
            [port.name for port in model.inputs],
            names,
            inputs,
            [name for name in computed_outputs if name not in aliases],
            aliases,
            {n: model.constants[n].array for n in names if n in model.constants},
            InputLimits(None) if narrow == "YES" else without_needless_length(part, limits),
        )
        return OpenVinoProgram(
            interface,
            open_compiled,
            lambda compiled: executed_nodes(part, owners, compiled),
            config["PERF_COUNT"],
        )

    def _target(self, config: Config, profile: bool) -> tuple[str, dict[str, Any]]:
        """Return the device and the options for OpenVINO's compile and import calls."""
        options = compile_options(config, self.properties)
        return config["DEVICE_ID"], {**options, "PERF_COUNT": profile}
