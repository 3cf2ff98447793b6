"""Core: the devices of a machine or a cluster, and what can be done with a model on them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

from devices.errors import HeteroError, PropertyError
from devices.model import Model
from devices.model_reader import Source, read_model
from devices.properties import Config
from devices.support import Support
from hetero.affinity import Affinity, assign
from hetero.affinity_file import parse_pins
from hetero.blob import Compilation, Cut, DeviceRecord, ModelBlob, open_blob
from hetero.blob_import import (
    absent_devices,
    import_config,
    import_sources,
    place_devices,
    recompilation,
    remapped,
)
from hetero.cache import cache_of
from hetero.cached_compile import Cached, CachedCompiler
from hetero.compiled_model import CompiledModel
from hetero.config import HETERO_PROPERTIES, SplitConfig, parse_own, split_config
from hetero.device_choice import check_counts, choose_devices, choose_prioritised
from hetero.lowering import constant_outputs, lower, stage_sources
from hetero.partition import partition
from hetero.planning.cost_planner import PlanningCore, cost_digest
from hetero.query import gather_pins, query_priority
from hetero.survey import Survey
from scheduler import create_executor
from scheduler.executor import Deployment, DeviceDescriptor, Executor, StageSource

_log = logging.getLogger(__name__)

ExecutorKind = Literal["ray", "inprocess"]
#: {pattern: device}, an affinity file, or ``PATTERN=DEVICE`` strings.
AffinitySource = Mapping[str, str] | str | Path | Sequence[str]


@dataclass(frozen=True, slots=True)
class _Request:
    """What is to be compiled for, with what, and where nodes are pinned."""

    devices: tuple[str, ...]
    config: SplitConfig
    pins: Affinity
    compilation: Compilation


class Core(PlanningCore):
    """The entry point.

    Parameters
    ----------
    executor : {"ray", "inprocess"}
        Where models run: on Ray's actors, or on threads of this process.
    address : str, optional
        An existing Ray cluster, as ``HOST:PORT`` or ``auto``; by default what ``RAY_ADDRESS`` says,
        and without it the first use starts a local one, which `close` ends.
    devices : mapping of str to int, optional
        How many devices of a plugin each node offers, as ``{"ORT": 2}``; by default one for each
        that the plugin finds.
    plugins : sequence of str or type
        Plugins beside the installed ones: ``module:attr``.

    Notes
    -----
    Ray starts on the first call that needs a device, not here.
    """

    def __init__(
        self,
        executor: ExecutorKind = "ray",
        *,
        address: str | None = None,
        devices: Mapping[str, int] | None = None,
        plugins: Sequence[Any] = (),
    ) -> None:
        if executor not in ("ray", "inprocess"):
            raise ValueError(f"executor={executor!r}: it is 'ray' or 'inprocess'.")
        if address is not None and executor != "ray":
            raise ValueError(f"address={address!r} is a Ray cluster's; executor is {executor!r}.")
        self._kind: ExecutorKind = executor
        self._address = address
        self._device_counts = dict(devices or {})
        self._plugins = tuple(plugins)
        self._executor: Executor | None = None
        self._lock = threading.RLock()
        self._config: dict[str, dict[str, Any]] = {}
        self._closed = False

    def __enter__(self) -> Core:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def executor(self) -> Executor:
        """The executor, started on first use.

        Raises
        ------
        ClusterError
            If Ray cannot start or cannot be reached.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("this Core is closed; make another.")
            if self._executor is None:
                self._executor = create_executor(
                    self._kind,
                    address=self._address,
                    devices=self._device_counts,
                    plugins=self._plugins,
                )
            return self._executor

    @property
    def device_descriptors(self) -> tuple[DeviceDescriptor, ...]:
        """Every device, broken plugins included as rows with their error.

        Raises
        ------
        UnknownDeviceError
            If `devices` counts devices of a plugin that is not there.
        """
        rows = self.executor.devices()
        check_counts(self._device_counts, rows)
        return rows

    @property
    def available_devices(self) -> list[str]:
        """Names of the devices that work: ``NAME`` where there is one, else ``NAME.<id>``."""
        return [d.name for d in self.device_descriptors if d.error is None]

    def resolve_devices(self, device: str) -> tuple[str, ...]:
        """Return the devices that a device string means, in order of priority.

        Raises
        ------
        UnknownDeviceError, PluginLoadError
            For a device that is not there, listing those that are, or whose plugin is broken.
        """
        return choose_devices(device, self.device_descriptors)

    def get_versions(self, device: str) -> dict[str, str]:
        """Return the version of each plugin that a device string names."""
        by_name = {d.name: d for d in self.device_descriptors}
        return {by_name[n].plugin: by_name[n].version for n in self.resolve_devices(device)}

    def set_property(self, device: str | Config, config: Config | None = None) -> None:
        """Set options for models compiled later.

        Parameters
        ----------
        device : str or mapping
            A device's name or ``HETERO``; or, alone, options for every device that knows them.
        config : mapping
            The options.
        """
        scope, options = ("", device) if not isinstance(device, str) else (device, config or {})
        if ":" in scope:
            raise PropertyError(
                f"{scope!r} is a list; set properties of one device at a time, or of HETERO."
            )
        if scope == "HETERO":
            parse_own(options)
        else:
            names = self.resolve_devices(scope) if scope else tuple(self.available_devices)
            known = {name: self._known_properties(name) for name in names}
            self._check(split_config(options, names, known, self._canonical))
            scope = names[0] if scope else ""
        self._config.setdefault(scope, {}).update(options)

    def get_property(self, device: str, name: str) -> Any:
        """Return a property of a device, or of ``HETERO``."""
        if ":" in device:
            raise PropertyError(f"{device!r} is a list; ask one device at a time, or HETERO.")
        if device == "HETERO":
            declared = HETERO_PROPERTIES[name]
            if name == "SUPPORTED_PROPERTIES":
                return tuple(HETERO_PROPERTIES)
            return self._config.get("HETERO", {}).get(name, declared.default)
        (device,) = self.resolve_devices(device)
        for scope in (device, ""):
            if name in self._config.get(scope, {}):
                return self._config[scope][name]
        return self.executor.get_property(device, name)

    def read_model(self, model: Source | Model) -> Model:
        """Read a model from a path, bytes or a ModelProto; ``light:NAME`` is shipped by onnx."""
        return read_model(model)

    def query_model(
        self,
        model: Source | Model,
        device: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
    ) -> Support:
        """Return which device each node would get, and why not the others.

        Parameters
        ----------
        model, device, config, affinity
            As for `compile_model`.

        Returns
        -------
        Support
            Node name -> device; nodes that nobody takes are in `Support.unsupported`, each with
            every device's reason.
        """
        return self._query(read_model(model), device, config or {}, affinity)[1]

    def survey_model(
        self,
        model: Source | Model,
        device: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
    ) -> Survey:
        """Ask every device about every node, also those that another device gets.

        Parameters
        ----------
        model, device, config, affinity
            As for `compile_model`.

        Raises
        ------
        AffinityError
            For pins that cannot be met.
        """
        source = read_model(model)
        query, support = self._query(source, device, config or {}, affinity)
        answers: dict[str, Support] = {}
        seconds: dict[str, float] = {}
        for name in query.devices:
            began = time.perf_counter()
            answers[name] = self.executor.query(name, source, query.config.devices[name])
            seconds[name] = time.perf_counter() - began
        described = {d.name: d for d in self.device_descriptors}
        return Survey(
            source,
            device,
            tuple(described[name] for name in query.devices),
            answers,
            support,
            assign(source, support, query.pins),
            query.pins,
            seconds,
            dict(config or {}),
        )

    def compile_model(
        self,
        model: Source | Model,
        device: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
    ) -> CompiledModel:
        """Compile a model over one device or several and deploy it.

        Parameters
        ----------
        model : path, bytes, onnx.ModelProto or Model
            The model.
        device : str
            ``CPU``, ``ORT.1``, ``HETERO:ORT,CPU``, or ``HETERO`` for every device.
        config : mapping, optional
            Options; they win over `set_property` and do not change it.
        affinity : mapping, path or sequence of str, optional
            Pins: {pattern: device}, a JSON or YAML file of them, or ``PATTERN=DEVICE`` strings. A
            pattern is a node's name, a glob or ``op:Type``. Nodes without a pin are assigned by
            priority. Pins in the model's own metadata hold where none is given here.

        Raises
        ------
        UnsupportedNodesError
            For nodes that no device takes: all of them, each with each device's reason.
        AffinityError
            For pins that name no node, no device, or a device that does not support the node.
        """
        return self._compile(read_model(model), device, config or {}, affinity)

    def _compile(
        self, source: Model, device: str, config: Config, affinity: Any, *company: str
    ) -> CompiledModel:
        """Compile a model that runs beside other devices."""
        request = self._request(source, device, config, affinity)
        compilation = request.compilation
        configs = {} if "CACHE_DIR" in config else request.config.devices
        cache = cache_of(compilation.own, configs)
        if (routed := self._compile_routed(source, device, config, request)) is not None:
            return routed

        def cut() -> Cut:
            placed = self._place(source, request)
            parts = partition(source, placed)
            return Cut(parts, placed, lower(parts))

        deploy = partial(self._deploy, limits=request.config.limits, company=company)
        if cache is None:
            made = cut()
            sources = stage_sources(made.partition, compilation.configs)
            found = Cached(made, deploy(made, sources), hit=False)
        else:
            shaping = self._shaping(request.devices)
            through = CachedCompiler(cache, source, compilation, request.pins, shaping, deploy)
            found = through.run(cut)
        return self._compiled(found, compilation)

    def import_model(
        self,
        source: str | Path | bytes | bytearray | memoryview | BinaryIO,
        device: str | None = None,
        config: Config | None = None,
        remap: Mapping[str, str] | None = None,
    ) -> CompiledModel:
        """Load what `CompiledModel.export_model` wrote, and deploy it.

        Parameters
        ----------
        source : path, bytes or binary file
            The blob. Weights of a file are mapped: one copy on a node, however many processes.
        device : str, optional
            Devices that may be used. Where the blob was compiled for others, the model in it is
            compiled again for these; the blob's options and pins, and `remap`, hold for those that
            are here.
        config : mapping, optional
            Options; the blob's own hold for the rest.
        remap : mapping of str to str, optional
            {device of the blob: device here}.

        Raises
        ------
        BlobError
            Not a blob, damaged, or of another format version.
        ModelNotFoundError
            There is no such file.
        UnknownDeviceError
            Devices that are not here, and neither `remap` nor `device` says what to do.

        Notes
        -----
        A stage whose device is of another version here, or fails to import it, is compiled again
        from the blob; a warning says so. While a model of a file is in use, replace that file by
        renaming another, as `export_model` does: what is mapped must not be written over.
        """
        if not isinstance(source, str | Path | bytes | bytearray | memoryview):
            source = source.read()
        blob = ModelBlob(open_blob(source))
        blob.blob.verify()
        model = blob.source()
        available = self.available_devices if device is None else self.resolve_devices(device)
        config = config or {}
        placed = place_devices(blob, available, remap)
        known = {name: self._known_properties(name) for name in placed.values()}
        if absent := [name for name in blob.plan.devices if name not in placed]:
            if device is None:
                raise absent_devices(blob, absent, available)
            _log.warning("model=%s: compiled again for %s", blob.name, device)
            options, pins = recompilation(blob, placed, config, known)
            return self.compile_model(model, device, options, affinity=pins)
        cut = remapped(blob.cut(model), placed)
        devices = cut.plan.devices
        split = import_config(blob, placed, self._split_config(config, devices), config, known)
        pins = {name: placed[old] for name, old in blob.pins.items()}
        compilation = self._compilation(devices, split, Affinity(pins))
        sources = import_sources(
            blob, cut, compilation.devices, compilation.configs, self._shaping(devices)
        )
        deployment = self._deploy(cut, sources, limits=split.limits)
        return self._compiled(Cached(cut, deployment, hit=False), compilation)

    def close(self) -> None:
        """Give back every device; ends the local Ray if this Core started it."""
        with self._lock:
            executor, self._executor = self._executor, None
            self._closed = True
        if executor is not None:
            executor.close()

    def _request(
        self, model: Model, device: str, config: Config, affinity: AffinitySource | None
    ) -> _Request:
        devices = self._devices(device, config)
        split = self._split_config(config, devices)
        split.own["COST_DIGEST"] = cost_digest(split.own)
        if isinstance(affinity, str | Path):
            pins = gather_pins(model, devices, file=affinity)
        else:
            given = affinity if isinstance(affinity, Mapping) else parse_pins(affinity or ())
            pins = gather_pins(model, devices, affinity=given)
        return _Request(devices, split, pins, self._compilation(devices, split, pins))

    def _query(
        self, model: Model, device: str, config: Config, affinity: AffinitySource | None
    ) -> tuple[_Request, Support]:
        request = self._request(model, device, config, affinity)
        return request, self._ask(model, request)

    def _ask(self, model: Model, request: _Request) -> Support:
        def ask(name: str, part: Model) -> Support:
            return self.executor.query(name, part, request.config.devices[name])

        return query_priority(model, request.devices, ask, request.pins)

    def _compilation(
        self, devices: Sequence[str], config: SplitConfig, pins: Affinity
    ) -> Compilation:
        described = {d.name: d for d in self.device_descriptors}
        return Compilation(
            {name: DeviceRecord.of(described[name]) for name in devices},
            config.own,
            # The whole model is cached, not each device's part by the device.
            {
                name: {n: v for n, v in options.items() if n != "CACHE_DIR"}
                for name, options in config.devices.items()
            },
            pins,
        )

    def _shaping(self, devices: Sequence[str]) -> dict[str, tuple[str, ...]]:
        return {n: self.executor.get_property(n, "CACHING_PROPERTIES") for n in devices}

    def _deploy(self, cut: Cut, sources: Sequence[StageSource], **options: Any) -> Deployment:
        constants = constant_outputs(cut.partition)
        return self.executor.deploy(cut.plan, sources, constants, **options)

    def _compiled(self, found: Cached, compilation: Compilation) -> CompiledModel:
        cut = found.cut
        return CompiledModel(
            cut.partition,
            cut.affinity,
            cut.plan,
            found.deployment,
            compilation.own,
            compilation=compilation,
            loaded_from_cache=found.hit,
        )

    def _devices(self, device: str, config: Config) -> tuple[str, ...]:
        own = self._config.get("HETERO", {})
        priorities = config.get("MULTI_DEVICE_PRIORITIES", own.get("MULTI_DEVICE_PRIORITIES"))
        names = HETERO_PROPERTIES["MULTI_DEVICE_PRIORITIES"].parse(priorities or ())
        return choose_prioritised(device, names, self.device_descriptors)

    def _split_config(self, config: Config, devices: tuple[str, ...]) -> SplitConfig:
        known = {name: frozenset(self._known_properties(name)) for name in devices}
        # What was set for every device, or for HETERO, may concern none of this model's.
        general = {
            name: value
            for scope in ("", "HETERO")
            for name, value in self._config.get(scope, {}).items()
            if name in HETERO_PROPERTIES or any(name in names for names in known.values())
        }
        own_devices = {name: self._config[name] for name in devices if name in self._config}
        given = self._check(split_config(config, devices, known, self._canonical))
        before = split_config(general, devices, known, self._canonical)
        return SplitConfig(
            before.own | {n: v for n, v in given.own.items() if n in config},
            {
                name: {**before.devices[name], **own_devices.get(name, {}), **given.devices[name]}
                for name in devices
            },
        )

    def _check(self, config: SplitConfig) -> SplitConfig:
        """Have each device check its share, also one that will get no node."""
        for name, options in config.devices.items():
            if options:
                self.executor.check_config(name, options)
        return config

    def _known_properties(self, device: str) -> tuple[str, ...]:
        return tuple(self.executor.get_property(device, "SUPPORTED_PROPERTIES"))

    def _canonical(self, device: str) -> str:
        """Return a device's name as `available_devices` has it; unknown ones as they are."""
        try:
            (name,) = self.resolve_devices(device)
        except (HeteroError, ValueError):
            return device
        return name
