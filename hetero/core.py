"""Core, the entry point: queries, plans and compiles models on the devices of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from hetero.affinity.affinity import Affinity, assign
from hetero.affinity.pins import AffinitySource, collect_pins
from hetero.cache.blob import ModelBlob, open_blob, open_header
from hetero.cache.check import BlobCheck, StageCheck, meets_requirements
from hetero.cache.folder import open_cache
from hetero.cache.import_model import (
    check_stages,
    import_options,
    import_sources,
    map_devices,
    missing_devices_error,
    recompilation_pins,
)
from hetero.compile.compiled_model import CompiledModel
from hetero.compile.compiler import Compiler, with_batch_axis
from hetero.compile.replicas import num_devices_for, with_devices_of_kind, with_replicas
from hetero.core_devices import Devices, ExecutorKind
from hetero.devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    HeteroError,
    ModelNotFoundError,
    UnknownDeviceError,
)
from hetero.devices.model.joining import Wires, join_models
from hetero.devices.model.model import Model
from hetero.devices.model.ov_any import plain
from hetero.devices.model.reader import Source, read_model
from hetero.devices.model.variables import with_states
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.properties import Config
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Refusal, Support
from hetero.devices.request.tensor import Tensor
from hetero.extensions import Extensions
from hetero.measure.sample_inputs import sample_shapes
from hetero.observe.metrics_server import MetricsServer
from hetero.observe.spans import SpanExport
from hetero.observe.trace import Trace
from hetero.partition.partition import PlacedPartition
from hetero.planning.cost.costs import Costs
from hetero.planning.cost.profile import Progress
from hetero.planning.cost_planner import CostPlanner
from hetero.planning.plan_report import PlanReport
from hetero.properties.compile_request import CompileRequest
from hetero.properties.device_selection import parse_counts
from hetero.properties.replicas_property import AUTO
from hetero.properties.settings import GLOBAL_SCOPE, Settings
from hetero.properties.table import HETERO_PROPERTIES, cache_folder, public_value
from hetero.query.housekeeping import with_housekeeping
from hetero.query.priority import query_priority, remove_refusals, without_refusals
from hetero.query.query_cache import QueryCache
from hetero.query.survey import Survey
from hetero.scheduler.device.discovery import PluginSpec
from hetero.scheduler.executor import Executor
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import HETERO, parse_device
from hetero.verify.verifier import Verifier
from hetero.version import Version

_log = logging.getLogger(__name__)


class Core:
    """The devices of a machine or a cluster, and the operations on models.

    Parameters
    ----------
    executor : {"ray", "inprocess"}
        ``ray`` runs models on Ray actors, ``inprocess`` on threads of this process.
    address : str, optional
        An existing Ray cluster, as ``HOST:PORT`` or ``auto``. Default: the cluster in
        ``RAY_ADDRESS``, or a local one, which the first use of a device starts and `close` stops.
    devices : mapping of str to int, optional
        Plugin -> number of devices per node, such as ``{"ORT": 2}``; by default the number that the
        plugin reports.
    plugins : sequence of str or type
        Plugins in addition to the installed ones: ``module:attr``, or
        ``ORT_OPENVINO@/opt/ov/bin/python`` for a plugin installed in another environment (Ray
        only). The prefix ``NAME=`` renames a plugin.

    Notes
    -----
    Ray starts on the first use of a device, not in the constructor.
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
                f"executor: expected 'ray' or 'inprocess', got {executor!r}. There is no "
                "configuration file; pass options to set_property or compile_model."
            )
        if address is not None and executor != "ray":
            raise ArgumentError(
                f"address={address!r}: expected executor 'ray' with an address, got {executor!r}."
            )
        if isinstance(plugins, str) or not isinstance(plugins, Iterable):
            raise ArgumentTypeError(
                "plugins: expected a list of plugins, such as ['my_module:MyPlugin']; got "
                f"{plugins!r}."
            )
        self._devices = Devices(
            executor, address, parse_counts(devices), plugins, self._executor_options
        )
        self._settings = Settings(self._devices.descriptors, self._devices.get_property)
        self._extensions = Extensions()
        self._observers: list[Trace | MetricsServer | SpanExport] = []
        self._queries = QueryCache(self._devices.query)
        self._planner = CostPlanner(self._devices.get_executor, self._queries)
        self._verifier = Verifier(self._devices.get_executor)
        self._compiler = Compiler(
            self._devices.get_executor, self._queries, self._planner, self._verifier
        )

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
            Ray cannot start or cannot be reached, or this Core is closed.
        """
        return self._devices.get_executor()

    @property
    def device_descriptors(self) -> tuple[DeviceDescriptor, ...]:
        """Descriptors of all devices; a plugin that failed to load has one with its error.

        Raises
        ------
        UnknownDeviceError
            The `devices` of this Core name a plugin that does not exist.
        """
        return self._devices.descriptors()

    @property
    def available_devices(self) -> list[str]:
        """Names of the usable devices: ``PLUGIN``, or ``PLUGIN.<id>`` if the plugin has several."""
        return [d.name for d in self.device_descriptors if d.error is None]

    def resolve_devices(self, device_name: str) -> tuple[str, ...]:
        """Return the names of the devices of a device string, in order of priority.

        Raises
        ------
        UnknownDeviceError
            No such device; the message lists the available ones.
        PluginLoadError
            The device's plugin failed to load.
        """
        return self._devices.resolve(device_name)

    def get_versions(self, device_name: str) -> dict[str, Version]:
        """Return the versions of the plugins of a device string.

        Raises
        ------
        UnknownDeviceError
            No such device.
        """
        return self._devices.versions(device_name)

    def register_plugin(self, plugin: PluginSpec, device_name: str | None = None) -> None:
        """Register a plugin that is not installed, and offer its devices.

        Parameters
        ----------
        plugin : str or type
            ``module:attr``, the name of an installed plugin, or a subclass of `devices.Plugin`.
            The suffix ``@PYTHON`` of a string names the interpreter of another environment. A
            plugin that fails to load is listed with its error; using it raises that error.
        device_name : str, optional
            The name of its devices; by default the plugin's name.

        Raises
        ------
        ArgumentError
            Another plugin has that name.
        UnsupportedOperationError
            The devices of a cluster are in use: register plugins before the first use of a device.
        """
        self._devices.register_plugin(plugin, device_name)

    def unload_plugin(self, device_name: str) -> None:
        """Unload a plugin; the next model that needs it loads it again.

        Existing compiled models keep working.

        Parameters
        ----------
        device_name : str
            The plugin's name.

        Raises
        ------
        UnknownDeviceError
            No such plugin.
        PluginLoadError
            The plugin failed to load.
        UnsupportedOperationError
            The devices belong to a cluster.
        """
        self._devices.unload_plugin(device_name)

    def create_context(self, device_name: str, properties: Config | None = None) -> RemoteContext:
        """Return the memory of a device, whose tensors stay in the device's process.

        Parameters
        ----------
        device_name : str
            A single device.
        properties : mapping, optional
            None or empty: memory has no properties.

        Returns
        -------
        RemoteContext
            Its tensors can be inputs and outputs of requests of this Core's models on any device,
            and do not pass through this process.

        Raises
        ------
        UnknownDeviceError
            No such device.
        PluginLoadError
            The device's plugin failed to load.
        """
        if properties:
            raise ArgumentError(
                f"create_context of {device_name}: expected no properties, got {properties}."
            )
        return self.executor.create_context(device_name)

    get_default_context = create_context

    def trace(self, path: str | Path, *, requests: int = 10_000) -> Trace:
        """Trace requests from now on: ``with core.trace("trace.json"): ...``.

        Without a ``with`` block, `Trace.close` or `close` ends the trace. On a common time axis, it
        shows each request's wait for admission and its time in flight, each stage's run and its
        time in the device's queue, and the transfers between stages. Requests of a batch
        (``AUTO_BATCH_SIZE``) share their stages.

        Parameters
        ----------
        path : path
            The output file for https://ui.perfetto.dev or ``chrome://tracing``; it is written at
            the end of the block, also after an error or Ctrl-C.
        requests : int
            Maximum number of requests in the trace: the last ones, including those still in flight.
            Each takes about a kilobyte per stage.

        Raises
        ------
        ArgumentError
            `requests` is not positive, or the file cannot be written.
        """
        devices = self._devices
        trace = Trace(path, devices.observers, devices.nodes, devices.in_flight, requests)
        self._observers.append(trace)
        return trace

    def serve_metrics(self, port: int = 0, *, host: str = "127.0.0.1") -> MetricsServer:
        """Serve metrics of requests from now on: ``with core.serve_metrics(9100): ...``.

        Without a ``with`` block, `MetricsServer.close` or `close` ends the server. Prometheus and
        ``hetero top`` read from `MetricsServer.url`: numbers of requests by their final state,
        latencies, waiting requests and requests in flight, runs and busy time of stages, queues and
        losses of devices. Each request of a batch (``AUTO_BATCH_SIZE``) counts; its stages run
        once.

        Parameters
        ----------
        port : int
            The port; 0 for a free one.
        host : str
            The address to listen on; everyone who can connect to it can read the metrics.

        Raises
        ------
        ArgumentError
            The server cannot listen on the address.
        """
        more = self._verifier.live_counts.counters
        server = MetricsServer(self._devices.observers, self._devices.load, host, port, more)
        self._observers.append(server)
        return server

    def export_spans(self, tracer_provider: Any = None) -> SpanExport:
        """Export requests from now on as OpenTelemetry spans: ``with core.export_spans(): ...``.

        Each request is a span, and each of its stages a child of it. A request that a server got
        with a ``traceparent`` continues that trace. Without a ``with`` block, `SpanExport.close` or
        `close` ends the export.

        Parameters
        ----------
        tracer_provider : opentelemetry.trace.TracerProvider, optional
            The provider that samples and sends the spans; by default the global one.

        Raises
        ------
        UnsupportedOperationError
            The extra ``opentelemetry`` is not installed.
        """
        spans = SpanExport(self._devices.observers, tracer_provider)
        self._observers.append(spans)
        return spans

    def set_property(
        self, device_name: Any = GLOBAL_SCOPE, properties: Config | tuple[str, Any] | None = None
    ) -> None:
        """Set options for models that are compiled later.

        Parameters
        ----------
        device_name : str, mapping or pair
            A device's name or ``HETERO``; as the only argument, the options themselves, which
            apply to ``HETERO`` and to every device that has them.
        properties : mapping or pair
            The options, or a single one such as ``hetero.properties.cache_dir("cache")``.
        """
        is_global = properties is None
        options: Any = device_name if is_global else properties
        if isinstance(options, tuple) and len(options) == 2:
            options = dict([options])
        if self._devices.running_executor is not None or self._devices.kind != "ray":
            self._settings.refuse_executor_options(options)
        self._settings.set(GLOBAL_SCOPE if is_global else device_name, options)

    def get_property(
        self,
        device_name: str,
        property: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return a property of a device or of ``HETERO``, or an option set for all devices.

        Parameters
        ----------
        device_name : str
            A device's name or ``HETERO``; as the only argument, the name of a property that is set
            for all devices.
        property : str
            The property's name.
        arguments : mapping, optional
            For ``COMPATIBILITY_CHECK``: ``RUNTIME_REQUIREMENTS`` of a compiled model.
        """
        if property == "COMPATIBILITY_CHECK":
            requirements = (arguments or {}).get("RUNTIME_REQUIREMENTS")
            device = HETERO if device_name == HETERO else self.resolve_devices(device_name)[0]
            return meets_requirements(requirements, device, self.device_descriptors)
        scope, name = (GLOBAL_SCOPE, device_name) if property is None else (device_name, property)
        return public_value(name, self._settings.get(scope, name))

    def get_available_devices(self) -> list[str]:
        """Return `available_devices`."""
        return self.available_devices

    def read_model(
        self,
        model: Source | Model | Sequence[Source | Model],
        weights: bytes | None = None,
        config: Config | None = None,
        *,
        states: Mapping[str, str] | None = None,
        wires: Wires | None = None,
    ) -> Model:
        """Read a model from a path, bytes or a ModelProto; onnx contains the ``light:NAME`` models.

        Parameters
        ----------
        model : path, bytes, onnx.ModelProto or Model; or a list of them
            The model. Several models become one graph, connected by `wires`.
        weights : optional
            None or empty; the parameter exists for compatibility with OpenVINO. An ONNX model
            contains or references its weights.
        config : mapping, optional
            Options of HETERO, as in OpenVINO. They are checked and have no effect on an ONNX model;
            pass options to `compile_model`.
        states : mapping of str to str, optional
            Input -> the output that is its value in the next run of the same request; see
            `InferRequest.query_state`. These inputs and outputs are not ports of the compiled
            model. ``*`` matches any text: ``{"past.*": "present.*"}``. The default is the model's
            metadata entry ``hetero.states``, in JSON.

        wires : mapping of str to str, or to list of str, optional
            For a list of models: output -> the input, or inputs, of later models that receive it;
            see `hetero.devices.model.joining.join_models`.

        Raises
        ------
        TensorNameError
            No such input or output.
        TensorTypeError, TensorShapeError
            The types or shapes of a pair differ.
        ArgumentError
            `weights` is not empty, or `wires` are given for one model.
        PropertyError
            An option does not exist, or its value is invalid.
        """
        Configuration(HETERO_PROPERTIES, HETERO).parse(config or {})
        return self._read(model, weights, states=states, wires=wires)

    def _read(
        self,
        model: Source | Model | Sequence[Source | Model],
        weights: bytes | None = None,
        *,
        states: Mapping[str, str] | None = None,
        wires: Wires | None = None,
    ) -> Model:
        """Read a model with the extensions of this Core; see `read_model`."""
        if isinstance(model, list | tuple):
            source = join_models([read_model(part) for part in model], wires or {})
        elif wires:
            raise ArgumentError("wires: expected a list of models to connect, got one model.")
        else:
            source = read_model(cast(Any, model))
        if weights:
            raise ArgumentError("weights: expected none: an ONNX model contains its weights.")
        extended = self._extensions.apply(source)
        return extended if states is None else with_states(extended, states)

    def add_extension(self, extension: Any) -> None:
        """Define a custom operator for models that are read, queried and compiled from now on.

        Parameters
        ----------
        extension : Extension, str, onnx.FunctionProto or path
            A function of arrays decorated with `hetero.custom_operator`, or its ``module:attr``,
            for device CPU. An ONNX function, for every device that supports its operators. The
            path of a library of custom operators, for device ORT.

        Raises
        ------
        ArgumentError
            The extension cannot be imported, or the operator already has another extension.
        """
        self._extensions.add(extension, on_ray=self._devices.kind == "ray")

    def query_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
        include_housekeeping: bool = False,
    ) -> Support:
        """Return the device of each node by priority, and the refusals of the other devices.

        Parameters
        ----------
        model, device_name, config, affinity
            As for `compile_model`.
        include_housekeeping : bool
            Whether the result also contains inputs, weights and outputs, as in OpenVINO. An input
            or weight gets the device of its first reader, an output that of its producer.

        Returns
        -------
        Support
            Node name -> device; `Support.unsupported` contains the nodes without a device, with
            the refusal of every device.
        """
        source, _, support = self._query(self._read(model), device_name, config or {}, affinity)
        return with_housekeeping(source, support) if include_housekeeping else support

    def survey_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
    ) -> Survey:
        """Query every device about every node, including the nodes that other devices get.

        Parameters
        ----------
        model, device_name, config, affinity
            As for `compile_model`.

        Raises
        ------
        AffinityError
            A pin is invalid.
        """
        source = self._read(model)
        source, request, support = self._query(source, device_name, config or {}, affinity)
        results = {
            n: self._queries.query_with_seconds(n, source, request.configs[n])
            for n in request.devices
        }
        wrong = {
            device: {n: refusal for n, refusal in nodes.items() if support.get(n) != device}
            for device, nodes in self._wrong_nodes(source, request).items()
        }
        plan_shapes = request.hetero_config["PLAN_SHAPES"]
        return Survey(
            source,
            device_name,
            request.descriptors,
            {name: without_refusals(r, name, wrong) for name, (r, _) in results.items()},
            support,
            assign(source, support, request.pins),
            request.pins,
            {name: seconds for name, (_, seconds) in results.items()},
            dict(config or {}),
            sample_shapes(source, plan_shapes) if plan_shapes else {},
            self._verifier.summaries(source, request, open_cache(request.hetero_config)),
        )

    def compile_model(
        self,
        model: Source | Model,
        device_name: str | RemoteContext = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
        states: Mapping[str, str] | None = None,
        weights: bytes | None = None,
        progress: Progress | None = None,
    ) -> CompiledModel:
        """Compile a model for one or several devices and deploy it.

        Parameters
        ----------
        model : path, bytes, onnx.ModelProto or Model
            The model.
        device_name : str or RemoteContext
            ``CPU``, ``ORT.1``, ``HETERO:ORT,CPU``, or ``HETERO`` for every device; or a context of
            this Core, for the context's device. Requests pass the context's tensors by reference.
        config : mapping, optional
            Options; they take precedence over `set_property` and do not change it. With
            ``COMPILED_BLOB``, the model is imported from that blob instead.
        affinity : mapping, path or sequence of str, optional
            Pins: {pattern: device}, a JSON or YAML file with them, or ``PATTERN=DEVICE`` strings. A
            pattern is a node name, a glob or ``op:Type``. Nodes without a pin are assigned by
            policy. Pins in the model's metadata apply to nodes without a pin here.
        states, weights
            As for `read_model`.
        progress : callable (int, int, str), optional
            Called during verification (``VERIFY``) with the number of subgraphs done, the number
            of subgraphs, and the current step.

        Raises
        ------
        UnsupportedNodesError
            Nodes have no device; with the refusals of every device.
        VerificationError
            With ``VERIFY=STRICT``, a device gives other results than CPU, the reference.
        AffinityError
            Pins match no node or device, or name a device that does not support the node.
        TensorNameError, TensorTypeError, TensorShapeError
            `states` are invalid; see `read_model`.
        ArgumentError
            The context belongs to another Core.
        """
        config = {} if config is None else config
        if isinstance(config, Mapping) and "COMPILED_BLOB" in config:
            config = dict(config)
            blob = plain(config.pop("COMPILED_BLOB"))
            blob = np.asarray(blob.data).tobytes() if isinstance(blob, Tensor) else blob
            return self.import_model(blob, device_name, config, weights=model)
        device_name = self._device_of(device_name)
        self._settings.refuse_executor_options(config)
        source = self._read(model, weights, states=states)
        request = self._request(source, device_name, config, affinity)
        cache = open_cache(request.hetero_config)
        return self._compiler.compile(source, request, cache, progress)

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
        """Measure the costs of a model's nodes on devices, and of transfers between devices.

        Ctrl-C ends the measurement and returns the costs so far, with ``interrupted`` set. Devices
        that fail are listed in ``missing``, with the reason.

        Parameters
        ----------
        model, device_name, config
            As for `compile_model`; every device of the string is measured.
        inputs : mapping, optional
            Input name -> value of the requests; generated by default.
        seconds : float
            Time limit; profiling ends earlier if the measurements have settled.
        progress : callable (int, int, str), optional
            Called with the number of steps done, the number of steps, and the current step.
        """
        source = self._read(model)
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
        """Plan a model by cost, without compiling it.

        Parameters
        ----------
        model, device_name, config, affinity
            As for `compile_model`. With the policy ``PRIORITY`` the plan is that of the priority
            list, with its predicted costs.
        costs : Costs, optional
            The result of `profile_model`. Default: the costs of ``COST_FILE``, those measured
            before (also in ``CACHE_DIR``), or a measurement of ``PROFILE_SECONDS``.
        progress : callable (int, int, str), optional
            Called with the number of steps done, the number of steps, and the current step.

        Raises
        ------
        PlanError
            No plan meets the constraints, with ``nodes`` and ``constraint``; or the costs are those
            of another model or other devices, with ``differences``.
        UnsupportedNodesError
            Nodes have no device.
        """
        source = self._read(model)
        request = with_replicas(self._request(source, device_name, config or {}, affinity))
        wrong = self._wrong_nodes(source, request)
        return self._planner.plan_and_verify(source, request, wrong, costs=costs, progress=progress)

    def measure_memory(
        self,
        compiled: CompiledModel,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        requests: int = 1,
    ) -> list[dict[str, Any]]:
        """Return the memory of the processes that run a model: predicted, and measured so far.

        Parameters
        ----------
        compiled : CompiledModel
            A model of this Core.
        shapes : mapping of str to sequence of int, optional
            Shapes of inputs with open dimensions; by default those of the plan.
        requests : int
            Number of requests in flight.

        Returns
        -------
        list of dict
            For each device the parts of `DeviceMemory`, and ``base_nbytes`` and
            ``measured_nbytes``: resident memory of its process without a model, and at its peak.
            The last two are None if the device has no process of its own.
        """
        predictions = self._planner.predict_memory(
            compiled.partition.source,
            compiled.placements,
            compiled.request,
            shapes=shapes,
            requests=requests,
        )
        rows = []
        for device, prediction in predictions.items():
            use = self.executor.memory_use(device)
            measured = {
                "base_nbytes": use and use.base_nbytes,
                "measured_nbytes": use and use.peak_nbytes,
            }
            rows.append(prediction.to_dict() | measured)
        return rows

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
            Rates, latencies and loads, and the effect of additional devices.
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
        """Read a cost file.

        Raises
        ------
        PlanError
            The file is damaged, or its costs are those of another model or other devices, with
            ``differences``.
        """
        source = self._read(model)
        request = self._request(source, device_name, config or {}, None)
        return self._planner.read_costs(path, source, request)

    def import_model(
        self,
        model_stream: str | Path | bytes | bytearray | memoryview | BinaryIO,
        device_name: str | RemoteContext | None = None,
        config: Config | None = None,
        remap: Mapping[str, str] | None = None,
        *,
        weights: Source | Model | None = None,
    ) -> CompiledModel:
        """Import a blob written by `CompiledModel.export_model`, and deploy it.

        Parameters
        ----------
        model_stream : path, bytes or binary file
            The blob. The weights of a file are memory-mapped: all processes of a node share them.
        device_name : str or RemoteContext, optional
            The devices that may be used, or a context of this Core, for the context's device. If
            the blob was compiled for other devices, its model is compiled again for these; the
            blob's options and pins apply to available devices.
        config : mapping, optional
            Options; they take precedence over those of the blob. ``MODEL_PTR`` is OpenVINO's name
            for `weights`.
        remap : mapping of str to str, optional
            Device of the blob -> available device.
        weights : path, bytes, onnx.ModelProto or Model, optional
            The original model, for a blob that was exported without its weights.

        Raises
        ------
        BlobError
            Not a blob, damaged, or of another format version.
        ModelNotFoundError
            No such file.
        UnknownDeviceError
            A device of the blob is not available, and there is neither `remap` nor `device_name`.
        ArgumentError
            The context belongs to another Core.

        Notes
        -----
        A stage is compiled again from the blob, with a warning, if its device has another version
        or fails to import it. Do not overwrite a blob file that is in use, because it is mapped;
        replace it by renaming another file, as `export_model` does.
        """
        config = dict(config or {})
        original = plain(config.pop("MODEL_PTR", weights))
        device_name = None if device_name is None else self._device_of(device_name)
        read_weights = None if original is None else partial(self._read, original)
        blob = ModelBlob(open_blob(model_stream, read_weights))
        blob.blob.verify()
        self._extensions.require(blob)
        model = blob.source()
        device_map = map_devices(blob, self._importing_devices(device_name), remap)
        options = import_options(blob, device_map, config, self._settings.property_tables())
        if missing := {name: name for name in blob.devices if name not in device_map}:
            if device_name is None:
                raise missing_devices_error(blob, missing, self.available_devices)
            _log.warning("model=%s: compiling again for %s", blob.name, device_name)
            pins = recompilation_pins(blob, device_map)
            return self.compile_model(model, device_name, options, affinity=pins)
        placements, request = self._import_request(blob, model, device_map, options)
        fitted = self._compiler.fit_to_memory(model, placements, request)
        sources = import_sources(blob, placements, fitted)
        deployment = self._compiler.deploy(placements, sources, fitted)
        cache = open_cache(request.hetero_config)
        return self._compiler.create_model(model, fitted, deployment, cache)

    def check(
        self,
        blob: str | Path | bytes | bytearray | memoryview | BinaryIO,
        device_name: str | None = None,
        config: Config | None = None,
        remap: Mapping[str, str] | None = None,
    ) -> BlobCheck:
        """Return whether a blob runs on this Core's devices, without loading it.

        Only the header is read; no stage is compiled or loaded, and weights are not verified.

        Parameters
        ----------
        blob : path, bytes or binary file
            The blob, as for `import_model`.
        device_name, config, remap : optional
            The same as for `import_model`.

        Returns
        -------
        BlobCheck
            Whether `import_model` would use every export (``runs``), compile some stages again
            (``recompiles``, with the reasons), or raise an error (``refused``, with the fix).

        Raises
        ------
        ModelNotFoundError
            No such file.
        """
        name = ""
        try:
            model_blob = ModelBlob(open_header(blob))
            name = model_blob.name
            self._extensions.require(model_blob)
            device_map = map_devices(model_blob, self._importing_devices(device_name), remap)
            tables = self._settings.property_tables()
            options = import_options(model_blob, device_map, config or {}, tables)
            if missing := {d: d for d in model_blob.devices if d not in device_map}:
                if device_name is None:
                    raise missing_devices_error(model_blob, missing, self.available_devices)
                self._settings.split(options, self.resolve_devices(device_name))
                reason = f"{', '.join(missing)} is not available"
                stages = [stage for plan in model_blob.plans for stage in plan.stages]
                return BlobCheck(
                    name,
                    tuple(
                        StageCheck(i, s.device, device_name, reason) for i, s in enumerate(stages)
                    ),
                )
            model = model_blob.source()
            placements, request = self._import_request(model_blob, model, device_map, options)
            return BlobCheck(name, tuple(check_stages(model_blob, placements, request)))
        except ModelNotFoundError:
            raise
        except HeteroError as error:
            return BlobCheck(name, refusal=str(error))

    def _device_of(self, device_name: str | RemoteContext) -> str:
        """Return a device string; for a context of this Core, the context's device."""
        if not isinstance(device_name, RemoteContext):
            return device_name
        device_name.check_owner(self.executor.create_context(device_name.device))
        return device_name.device

    def _importing_devices(self, device_name: str | None) -> Sequence[str]:
        """Return the devices that an import may use."""
        return self.available_devices if device_name is None else self.resolve_devices(device_name)

    def _import_request(
        self,
        blob: ModelBlob,
        model: Model,
        device_map: Mapping[str, str],
        options: Config,
    ) -> tuple[tuple[PlacedPartition, ...], CompileRequest]:
        """Return a blob's placements on available devices, and the request to deploy them."""
        placements = tuple(p.on_devices(device_map, "compiled for") for p in blob.placements(model))
        split = self._settings.split(options, device_map.values())
        pins = {name: device_map[old] for name, old in blob.head.pins.items() if old in device_map}
        names = dict.fromkeys(device for p in placements for device in p.plan.devices)
        devices = self._devices.describe(names)
        request = CompileRequest(
            devices, split.hetero_config, split.device_configs_without_cache(), Affinity(pins)
        )
        return placements, request

    def close(self) -> None:
        """Release all devices, and stop the local Ray cluster if this Core started it."""
        while self._observers:
            self._observers.pop().close()
        self._devices.close()

    def _executor_options(self) -> Mapping[str, Any]:
        """Return the options for the start of the executor."""
        return self._settings.executor_options(self._devices.kind)

    def _request(
        self, model: Model, device: str, config: Config, affinity: AffinitySource | None
    ) -> CompileRequest:
        devices, config = self._select_devices(device, config)
        split = self._settings.split(config, devices)
        tables = self._settings.property_tables()
        configs = self._extensions.allow(model, split.device_configs_without_cache(), tables)
        hetero_config = {**split.hetero_config, "CACHE_DIR": cache_folder(split, config)}
        pins = collect_pins(model, devices, affinity)
        return CompileRequest(self._devices.describe(devices), hetero_config, configs, pins)

    def _select_devices(self, device: str, config: Config) -> tuple[tuple[str, ...], Config]:
        """Return the devices of a device string and options, and the remaining options.

        If the cluster has too few, its autoscaler is asked for nodes.
        """
        names = () if "DEVICE_ID" in config else parse_device(device).names
        try:
            devices, others = self._settings.select_devices(device, config)
        except UnknownDeviceError as error:
            family, _, number = str(error.data.get("device")).rpartition(".")
            if not number.isdecimal() or not self._devices.add_of_family(family, int(number) + 1):
                raise
            devices, others = self._settings.select_devices(device, config)
        replicas = self._settings.replicas(others)
        num_needed = num_devices_for(replicas)
        if replicas == AUTO or num_needed > len(devices):
            devices = with_devices_of_kind(devices, names, self._devices.descriptors())
        if (
            num_needed > len(devices)
            and names
            and self._devices.add_of_family(names[0], num_needed)
        ):
            devices = with_devices_of_kind(devices, names, self._devices.descriptors())
        return devices, others

    def _query(
        self, model: Model, device: str, config: Config, affinity: AffinitySource | None
    ) -> tuple[Model, CompileRequest, Support]:
        request = with_replicas(self._request(model, device, config, affinity))
        model, query = with_batch_axis(model, request), self._queries.querier(request)
        wrong = self._wrong_nodes(model, request)
        while True:

            def query_right(device: str, submodel: Model) -> Support:
                return without_refusals(query(device, submodel), device, wrong)

            support = query_priority(model, request.devices, query_right, request.pins)
            # As `compile_model` does, leave wrong nodes on their device if no other runs them.
            if not remove_refusals(wrong, support.unsupported):
                return model, request, support

    def _wrong_nodes(self, model: Model, request: CompileRequest) -> dict[str, dict[str, Refusal]]:
        """Return the nodes that earlier compilations found wrong, except pinned ones."""
        cache = open_cache(request.hetero_config)
        known = self._verifier.refusals(model, request, cache)
        return {
            device: {n: refusal for n, refusal in nodes.items() if request.pins.get(n) != device}
            for device, nodes in known.items()
        }
