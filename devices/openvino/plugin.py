"""The OV device: OpenVINO, its own devices as ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hetero.devices.errors import DeviceError, PluginLoadError
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import Config, PropertyTable
from hetero.devices.plugin.support import Refusal

try:
    import openvino
except ImportError as error:
    raise PluginLoadError(
        "the OV device needs OpenVINO, which is not installed; pip install 'hetero[openvino]'.",
        device="OV",
    ) from error

from hetero.devices.openvino.conversion import convert
from hetero.devices.openvino.executed import executed_nodes, operator_owners
from hetero.devices.openvino.limits import Limits, checked_limits, kept_to
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
    read_only,
)


class OpenVinoPlugin(Plugin):
    """OpenVINO.

    Which nodes it takes is asked of OpenVINO itself, one small model for each distinct operator,
    attributes, types and shapes, less those whose answers are known to be wrong.
    """

    name: ClassVar[str] = "OV"
    rank: ClassVar[int] = 45
    properties: ClassVar[PropertyTable] = property_table()

    def __init__(self) -> None:
        super().__init__()
        if not device_ids():
            raise PluginLoadError("OpenVINO finds no device here.", device=self.name)
        self._query = OpenVinoQuery()

    def device_ids(self) -> tuple[str, ...]:
        """Return the names of OpenVINO's own devices."""
        return device_ids()

    def effective_config(self, config: Config | None = None) -> dict[str, Any]:
        """Return the options; with a hint of THROUGHPUT as many streams as the device offers."""
        effective = super().effective_config(config)
        told = {**self.configuration.values, **(config or {})}
        if effective.get("PERFORMANCE_HINT") == "THROUGHPUT" and "NUM_STREAMS" not in told:
            offered = read_only(effective["DEVICE_ID"]).get("RANGE_FOR_STREAMS", (1, 1))
            effective["NUM_STREAMS"] = offered[-1]
        return effective

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Ask OpenVINO about every node."""
        return self._query.judge(model, config["DEVICE_ID"], config["OV_NARROW_INTEGERS"])

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Take what OpenVINO took: `prepare_query` holds the refusals."""
        return None

    def compile(self, model: Model, config: Config) -> Program:
        """Compile the whole model; DeviceError if OpenVINO cannot after all."""
        try:
            return self._program(model, config)
        except RuntimeError as error:
            raise DeviceError(
                f"OpenVINO cannot compile model {model.name!r}: {' '.join(str(error).split())}",
                device=self.name,
            ) from error

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Import OpenVINO's blob; BlobError if the payload is another device's."""
        payload.check_format(PAYLOAD_FORMAT, model.name)
        interface, blob, nodes = imported_interface(
            payload, [port.name for port in model.inputs], [port.name for port in model.outputs]
        )

        def open_compiled(profile: bool) -> openvino.CompiledModel:
            return core().import_model(blob, *self._target(config, profile))

        return OpenVinoProgram(interface, open_compiled, lambda _: nodes, config["PERF_COUNT"])

    def version(self) -> str:
        """Return OpenVINO's version, build included."""
        return str(openvino.get_version())

    def full_name(self, device_id: str) -> str:
        """Return OpenVINO's name of the device."""
        named = read_only(device_id)["FULL_DEVICE_NAME"]
        return f"OpenVINO {openvino.__version__.partition('-')[0]} on {named}"

    def fingerprint(self, device_id: str) -> str:
        """Return what its blobs depend on: version, device, drivers, abilities."""
        told = {
            name: value
            for name, value in read_only(device_id).items()
            if name.endswith(("_VERSION", "_ARCHITECTURE", "_CAPABILITIES", "_DEVICE_NAME"))
        }
        return f"openvino-{self.version()}-{device_id}-{sorted(told.items())}"

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return what OpenVINO says of the device."""
        ours = ("AVAILABLE_DEVICES", "EXECUTION_DEVICES", "FULL_DEVICE_NAME")
        return {n: v for n, v in read_only(device_id).items() if n not in ours}

    def _program(self, model: Model, config: Config) -> Program:
        names = [port.name for port in model.outputs]
        made = [name for name in dict.fromkeys(names) if name in model.producers]
        part = model.extract(range(len(model.nodes)), made)
        source, fed, same = convert(part)
        owners = operator_owners(part, source)
        sources = [source]

        def open_compiled(profile: bool) -> openvino.CompiledModel:
            # The first is kept no longer than it is needed; a second kind is rarely asked for.
            source = sources.pop() if sources else convert(part)[0]
            return core().compile_model(source, *self._target(config, profile))

        narrow = config["OV_NARROW_INTEGERS"]
        limits = checked_limits(part) if narrow == "CHECKED" else Limits()
        interface = Interface(
            [port.name for port in model.inputs],
            names,
            fed,
            [name for name in made if name not in same],
            same,
            {n: model.constants[n].array for n in names if n in model.constants},
            Limits(None) if narrow == "YES" else kept_to(part, limits),
        )
        return OpenVinoProgram(
            interface,
            open_compiled,
            lambda compiled: executed_nodes(part, owners, compiled),
            config["PERF_COUNT"],
        )

    def _target(self, config: Config, profile: bool) -> tuple[str, dict[str, Any]]:
        """Return OpenVINO's device and its options."""
        options = compile_options(config, self.properties)
        return config["DEVICE_ID"], {**options, "PERF_COUNT": profile}
