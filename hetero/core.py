"""Core: the devices of a machine or a cluster, and what can be done with a model on them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from hetero.affinity.affinity import Affinity, assign
from hetero.affinity.pins import AffinitySource, collect_pins
from hetero.cache.blob import ModelBlob, open_blob
from hetero.cache.folder import cache_of
from hetero.cache.importing import (
    absent_devices,
    import_options,
    import_sources,
    place_devices,
    recompiled_pins,
)
from hetero.compile.compiled_model import CompiledModel
from hetero.compile.compiler import Compiler, opened
from hetero.compile.stage_replicas import without_stand_ins
from hetero.core_devices import Devices, ExecutorKind
from hetero.devices.errors import ArgumentError, ArgumentTypeError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import Source, read_model
from hetero.devices.model.variables import with_states
from hetero.devices.plugin.properties import Config
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.extensions import Extensions
from hetero.measure.sample_inputs import sample_shapes
from hetero.observe.metrics_server import MetricsServer
from hetero.observe.trace import Trace
from hetero.planning.cost.costs import Costs
from hetero.planning.cost.profile import Progress
from hetero.planning.cost_planner import CostPlanner
from hetero.planning.plan_report import PlanReport
from hetero.properties.compile_request import CompileRequest
from hetero.properties.device_selection import parse_counts
from hetero.properties.settings import EVERYWHERE, Scopes
from hetero.properties.table import cache_folder, listed
from hetero.query.priority import query_priority
from hetero.query.query_cache import QueryCache
from hetero.query.survey import Survey
from hetero.scheduler.device.probe import PluginSpec
from hetero.scheduler.executor import Executor
from hetero.scheduler.vocabulary.rows import DeviceDescriptor
from hetero.version import Version

_log = logging.getLogger(__name__)


class Core:
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
        Plugins besides the installed ones: ``module:attr``; ``ORT_OPENVINO@/opt/ov/bin/python``
        has Ray run an installed plugin of another environment; ``NAME=`` before either names it.

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
            raise ArgumentError(
                f"executor={executor!r}: it is 'ray' or 'inprocess'. There is no configuration "
                "file; options are given to set_property and compile_model."
            )
        if address is not None and executor != "ray":
            raise ArgumentError(f"address={address!r} is a Ray cluster; executor is {executor!r}.")
        if isinstance(plugins, str) or not isinstance(plugins, Iterable):
            raise ArgumentTypeError(
                f"plugins={plugins!r}: wanted a list of plugins, as ['my_module:MyPlugin']."
            )
        self._devices = Devices(
            executor,
            address,
            parse_counts(devices),
            plugins,
            lambda: self._scopes.of_executor(executor),
        )
        self._scopes = Scopes(self._devices.rows, lambda *names: self.executor.get_property(*names))
        self._extensions = Extensions()
        self._watching: list[Trace | MetricsServer] = []
        self._queries = QueryCache(lambda *question: self.executor.query(*question))
        self._planner = CostPlanner(lambda: self.executor, self._queries)
        self._compiler = Compiler(lambda: self.executor, self._queries, self._planner)

    def __repr__(self) -> str:
        return f"<Core {self._devices}>"

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
            If Ray cannot start or cannot be reached, or this Core is closed.
        """
        return self._devices.executor

    @property
    def device_descriptors(self) -> tuple[DeviceDescriptor, ...]:
        """Every device, broken plugins included as rows with their error.

        Raises
        ------
        UnknownDeviceError
            If `devices` counts devices of a plugin that is not there.
        """
        return self._devices.rows()

    @property
    def available_devices(self) -> list[str]:
        """Names of the devices that work: ``NAME`` where there is one, else ``NAME.<id>``."""
        return [d.name for d in self.device_descriptors if d.error is None]

    def resolve_devices(self, device_name: str) -> tuple[str, ...]:
        """Return the devices that a device string means, in order of priority.

        Raises
        ------
        UnknownDeviceError, PluginLoadError
            For a device that is not there, listing those that are, or whose plugin is broken.
        """
        return self._devices.resolve(device_name)

    def get_versions(self, device_name: str) -> dict[str, Version]:
        """Return the version of each plugin that a device string names.

        Raises
        ------
        UnknownDeviceError
            For a device that is not there.
        """
        return self._devices.versions(device_name)

    def register_plugin(self, plugin: PluginSpec, device_name: str | None = None) -> None:
        """Offer the devices of a plugin that is not installed.

        Parameters
        ----------
        plugin : str or type
            ``module:attr``, an installed one's name, either with ``@PYTHON`` for one of another
            interpreter's, or a subclass of `devices.Plugin`. One that cannot be had is a device
            with its error, which its first use raises.
        device_name : str, optional
            The name of its devices, where it is not to be the plugin's own.

        Raises
        ------
        ArgumentError
            Another plugin has that name.
        UnsupportedOperationError
            The devices of a cluster are in use: register plugins before the first call that needs
            one.
        """
        self._devices.register_plugin(plugin, device_name)

    def unload_plugin(self, device_name: str) -> None:
        """Let go of a plugin: what it holds is made anew for models compiled from now on.

        Models made before keep working.

        Parameters
        ----------
        device_name : str
            The plugin's name.

        Raises
        ------
        UnknownDeviceError, PluginLoadError
            For a plugin that is not there, or is broken.
        UnsupportedOperationError
            Devices are a cluster's.
        """
        self._devices.unload_plugin(device_name)

    def create_context(self, device_name: str, properties: Config | None = None) -> RemoteContext:
        """Return a device's memory: its tensors stay in the device's process between requests.

        Parameters
        ----------
        device_name : str
            One device; its memory has no `properties`.

        Returns
        -------
        RemoteContext
            Its tensors are inputs and outputs of requests of this Core's models on any device,
            and do not pass through this process.

        Raises
        ------
        UnknownDeviceError, PluginLoadError
            For a device that is not there, or whose plugin is broken.
        """
        if properties:
            raise ArgumentError(f"create_context of {device_name}: {properties}: there are none.")
        return self.executor.create_context(device_name)

    get_default_context = create_context

    def trace(self, path: str | Path, *, requests: int = 10_000) -> Trace:
        """Trace requests from now on: ``with core.trace("trace.json"): ...``.

        Without the block, its `Trace.close` or the Core's ends it. The file shows, on one clock,
        each request's wait for admission and its time in flight, each stage's run and its time in
        its device's queue, and the wires between stages. Requests that ``AUTO_BATCH_SIZE`` joins
        have their stages in common.

        Parameters
        ----------
        path : path
            The file, for https://ui.perfetto.dev or ``chrome://tracing``; it appears when the block
            ends, also by an error or Ctrl-C.
        requests : int
            How many are kept: the last to end, and those that have not ended with the block. Each
            takes about a kilobyte for each stage.

        Raises
        ------
        ArgumentError
            `requests` is not positive, or no file can be written there.
        """
        devices = self._devices
        trace = Trace(path, devices.observers, devices.nodes, devices.in_flight, requests)
        self._watching.append(trace)
        return trace

    def serve_metrics(self, port: int = 0, *, host: str = "127.0.0.1") -> MetricsServer:
        """Count requests from now on and serve the figures: ``with core.serve_metrics(9100): ...``.

        Without the block, its `MetricsServer.close` or the Core's ends it. Prometheus and ``hetero
        top`` read at its `MetricsServer.url` requests by the state they ended in, their latencies,
        what waits and is in flight, each stage's runs and busy time, devices' queues and losses.
        Requests that ``AUTO_BATCH_SIZE`` joins count one by one; their stages run once.

        Parameters
        ----------
        port : int
            Where to listen; 0 takes a port that is free.
        host : str
            The address to listen on: whoever reaches it can read the figures.

        Raises
        ------
        ArgumentError
            It cannot listen there.
        """
        server = MetricsServer(self._devices.observers, self._devices.load, host, port)
        self._watching.append(server)
        return server

    def set_property(
        self, device_name: Any = EVERYWHERE, properties: Config | tuple[str, Any] | None = None
    ) -> None:
        """Set options for models compiled later.

        Parameters
        ----------
        device_name : str, mapping or pair
            A device's name or ``HETERO``; or, alone, options for every device that knows them.
        properties : mapping or pair
            The options, or one as ``hetero.properties.cache_dir("cache")`` gives it.
        """
        alone = properties is None
        options: Any = device_name if alone else properties
        if isinstance(options, tuple) and len(options) == 2:
            options = dict([options])
        if self._devices.started is not None or self._devices.kind != "ray":
            self._scopes.keep_executor(options)
        self._scopes.set(EVERYWHERE if alone else device_name, options)

    def get_property(self, device_name: str, property: str | None = None) -> Any:
        """Return a property of a device or of ``HETERO``; or, alone, what is set for all.

        Parameters
        ----------
        device_name : str
            A device's name or ``HETERO``; or, alone, a property's name.
        property : str
            The property's name.
        """
        scope, name = (EVERYWHERE, device_name) if property is None else (device_name, property)
        return listed(name, self._scopes.get(scope, name))

    def get_available_devices(self) -> list[str]:
        """Return `available_devices`."""
        return self.available_devices

    def read_model(
        self,
        model: Source | Model,
        weights: bytes | None = None,
        config: Config | None = None,
        *,
        states: Mapping[str, str] | None = None,
    ) -> Model:
        """Read a model from a path, bytes or a ModelProto; ``light:NAME`` is shipped by onnx.

        Parameters
        ----------
        model : path, bytes, onnx.ModelProto or Model
            The model.
        weights, config : optional
            None or empty: an ONNX model has its weights, or names files beside it; options are
            `compile_model`'s.
        states : mapping of str to str, optional
            Input -> output that is its value in the next run of the same request: see
            `InferRequest.query_state`. Both are then no ports of the compiled model. ``*`` stands
            for any text, as in ``{"past.*": "present.*"}``. Otherwise what the model's own
            metadata says under ``hetero.states``, as JSON.

        Raises
        ------
        TensorNameError, TensorTypeError, TensorShapeError
            There is no such input or output, or a pair is not alike.
        ArgumentError
            Weights are given apart from the model, or options.
        """
        if weights or config:
            raise ArgumentError("weights, config: an ONNX model has its own, and needs none.")
        found = self._extensions.apply(read_model(model))
        return found if states is None else with_states(found, states)

    def add_extension(self, extension: Any) -> None:
        """Define a custom operator for the models that are read, queried and compiled from now on.

        Parameters
        ----------
        extension : Extension, str, onnx.FunctionProto or path
            A function of arrays that `hetero.custom_operator` decorates, or its ``module:attr``:
            device CPU runs it. An ONNX function: every device runs it that runs what it is made
            of. The path of a library of custom operators: device ORT runs these.

        Raises
        ------
        ArgumentError
            It cannot be imported, or the operator has another one.
        """
        self._extensions.add(extension, on_ray=self._devices.kind == "ray")

    def query_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
    ) -> Support:
        """Return which device each node would get, and why not the others.

        Parameters
        ----------
        model, device_name, config, affinity
            As for `compile_model`.

        Returns
        -------
        Support
            Node name -> device; nodes that no device takes are in `Support.unsupported`, each with
            every device's reason.
        """
        return self._query(self.read_model(model), device_name, config or {}, affinity)[2]

    def survey_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
    ) -> Survey:
        """Ask every device about every node, also those that another device gets.

        Parameters
        ----------
        model, device_name, config, affinity
            As for `compile_model`.

        Raises
        ------
        AffinityError
            For pins that cannot be met.
        """
        source = self.read_model(model)
        source, query, support = self._query(source, device_name, config or {}, affinity)
        told = {n: self._queries.timed(n, source, query.configs[n]) for n in query.devices}
        return Survey(
            source,
            device_name,
            query.described,
            {name: answer for name, (answer, _) in told.items()},
            support,
            assign(source, support, query.pins),
            query.pins,
            {name: seconds for name, (_, seconds) in told.items()},
            dict(config or {}),
            sample_shapes(source, given) if (given := query.own["PLAN_SHAPES"]) else {},
        )

    def compile_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
        states: Mapping[str, str] | None = None,
        weights: bytes | None = None,
    ) -> CompiledModel:
        """Compile a model over one device or several and deploy it.

        Parameters
        ----------
        model : path, bytes, onnx.ModelProto or Model
            The model.
        device_name : str
            ``CPU``, ``ORT.1``, ``HETERO:ORT,CPU``, or ``HETERO`` for every device.
        config : mapping, optional
            Options; they win over `set_property` and do not change it.
        affinity : mapping, path or sequence of str, optional
            Pins: {pattern: device}, a JSON or YAML file of them, or ``PATTERN=DEVICE`` strings. A
            pattern is a node's name, a glob or ``op:Type``. Nodes without a pin are assigned by
            priority. Pins in the model's own metadata hold where none is given here.
        states, weights
            As for `read_model`.

        Raises
        ------
        UnsupportedNodesError
            For nodes that no device takes: all of them, each with each device's reason.
        AffinityError
            For pins that name no node, no device, or a device that does not support the node.
        TensorNameError, TensorTypeError, TensorShapeError
            For states that the model does not have, or that are not alike.
        """
        self._scopes.keep_executor(config := config or {})
        source = self.read_model(model, weights, states=states)
        request = self._request(source, device_name, config, affinity)
        return self._compiler.compile(source, request, cache_of(request.own))

    def profile_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        seconds: float = 20.0,
        progress: Progress | None = None,
    ) -> Costs:
        """Measure what a model's nodes and subgraphs take on devices, and tensors between them.

        Parameters
        ----------
        model, device_name, config
            As for `compile_model`; every device named is measured.
        inputs : mapping, optional
            A request to measure with, input name -> value; made up to fit by default.
        seconds : float
            The most time for it; it ends when the figures have settled.
        progress : callable (int, int, str), optional
            Called with steps done, steps in all, and what is measured.

        Ctrl-C ends it: the costs so far are returned, ``interrupted`` being set. Devices that
        failed or vanished are in ``missing`` with the reason.
        """
        source = self.read_model(model)
        request = self._request(source, device_name, config or {}, None)
        return self._planner.profile(source, request, inputs, seconds, progress)

    def plan_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
        costs: Costs | None = None,
        progress: Progress | None = None,
    ) -> PlanReport:
        """Choose a device for each node by cost, without compiling.

        Parameters
        ----------
        model, device_name, config, affinity
            As for `compile_model`. Pins hold. With ``PRIORITY`` the list's plan is only judged.
        costs : Costs, optional
            What `profile_model` measured; else ``COST_FILE``'s, those measured before by this Core
            or kept in ``CACHE_DIR``, or measured now for ``PROFILE_SECONDS``.
        progress : callable (int, int, str), optional
            Called with steps done, steps in all, and what is measured or searched.

        Raises
        ------
        PlanError
            Constraints that no plan meets, with ``nodes`` and ``constraint``; costs of another
            model or of other devices, with ``differences``.
        UnsupportedNodesError
            For nodes that no device takes.
        """
        source = self.read_model(model)
        request = without_stand_ins(self._request(source, device_name, config or {}, affinity))
        return self._planner.plan_and_verify(source, request, costs=costs, progress=progress)

    def simulate(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        **options: Any,
    ) -> Any:
        """Simulate serving a model in virtual time, on devices that may not exist.

        Parameters
        ----------
        model, device_name, config
            As for `plan_model`, whose plan is served.
        **options : object
            The fleet, the load and the costs: see
            `hetero.apps.simulate.simulate_model.simulate_model`.

        Returns
        -------
        Simulation
            Rates, latencies and loads, and what other devices would change.
        """
        # The core does not depend on its applications; this is a shortcut to one of them.
        from hetero.apps.simulate.simulate_model import simulate_model

        return simulate_model(self, model, device_name, config, **options)

    def read_costs(
        self,
        path: str | Path,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
    ) -> Costs:
        """Read a cost file; PlanError with ``differences`` if it is of another model or devices."""
        source = self.read_model(model)
        request = self._request(source, device_name, config or {}, None)
        return self._planner.read_costs(path, source, request)

    def import_model(
        self,
        model_stream: str | Path | bytes | bytearray | memoryview | BinaryIO,
        device_name: str | None = None,
        config: Config | None = None,
        remap: Mapping[str, str] | None = None,
        *,
        weights: Source | Model | None = None,
    ) -> CompiledModel:
        """Load what `CompiledModel.export_model` wrote, and deploy it.

        Parameters
        ----------
        model_stream : path, bytes or binary file
            The blob. Weights of a file are mapped: one copy on a node, however many processes.
        device_name : str, optional
            Devices that may be used. Where the blob was compiled for others, the model in it is
            compiled again for these; the blob's options and pins, and `remap`, hold for those that
            are here.
        config : mapping, optional
            Options; the blob's own hold for the rest.
        remap : mapping of str to str, optional
            {device of the blob: device here}.
        weights : path, bytes, onnx.ModelProto or Model, optional
            The model that was compiled, for a blob that was exported without its weights.

        Raises
        ------
        BlobError
            Not a blob, damaged, or of another format version.
        ModelNotFoundError
            There is no such file.
        UnknownDeviceError
            Devices that are not here, and neither `remap` nor `device_name` says what to do.

        Notes
        -----
        A stage whose device is of another version here, or fails to import it, is compiled again
        from the blob; a warning says so. While a model of a file is in use, replace that file by
        renaming another, as `export_model` does: what is mapped must not be written over.
        """
        given = None if weights is None else partial(self.read_model, weights)
        blob = ModelBlob(open_blob(model_stream, given))
        blob.blob.verify()
        self._extensions.require(blob)
        model = blob.source()
        there = self.available_devices if device_name is None else self.resolve_devices(device_name)
        placed = place_devices(blob, there, remap)
        options = import_options(blob, placed, config or {}, self._scopes.tables())
        if absent := {name: name for name in blob.used if name not in placed}:
            if device_name is None:
                raise absent_devices(blob, absent, there)
            _log.warning("model=%s: compiled again for %s", blob.name, device_name)
            again = recompiled_pins(blob, placed)
            return self.compile_model(model, device_name, options, affinity=again)
        cuts = tuple(cut.on_devices(placed, "compiled for") for cut in blob.cuts(model))
        split = self._scopes.split(options, placed.values())
        pins = {name: placed[old] for name, old in blob.head.pins.items() if old in placed}
        used = self._devices.described(dict.fromkeys(d for cut in cuts for d in cut.plan.devices))
        request = CompileRequest(used, split.own, split.without_caches(), Affinity(pins))
        sources = import_sources(blob, cuts, request)
        deployment = self._compiler.deploy(cuts, sources, request)
        return self._compiler.compiled(model, request, deployment)

    def close(self) -> None:
        """Give back every device; ends the local Ray if this Core started it."""
        while self._watching:
            self._watching.pop().close()
        self._devices.close()

    def _request(
        self, model: Model, device: str, config: Config, affinity: AffinitySource | None
    ) -> CompileRequest:
        devices, config = self._scopes.devices(device, config)
        split = self._scopes.split(config, devices)
        configs = self._extensions.allow(model, split.without_caches(), self._scopes.tables())
        own = {**split.own, "CACHE_DIR": cache_folder(split, config)}
        pins = collect_pins(model, devices, affinity)
        return CompileRequest(self._devices.described(devices), own, configs, pins)

    def _query(
        self, model: Model, device: str, config: Config, affinity: AffinitySource | None
    ) -> tuple[Model, CompileRequest, Support]:
        request = without_stand_ins(self._request(model, device, config, affinity))
        model, ask = opened(model, request), self._queries.querier(request)
        return model, request, query_priority(model, request.devices, ask, request.pins)
