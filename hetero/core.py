"""Core: the devices of a machine or a cluster, and what can be done with a model on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

from devices.errors import ArgumentError, ArgumentTypeError, ClusterError
from devices.model.model import Model
from devices.model.reader import Source, read_model
from devices.model.variables import with_states
from devices.plugin.properties import Config
from devices.plugin.support import Support
from hetero.affinity.affinity import Affinity, assign
from hetero.cache.blob import Compilation, ModelBlob, open_blob
from hetero.cache.cached_compile import Cached
from hetero.cache.folder import cache_of
from hetero.cache.importing import (
    absent_devices,
    import_config,
    import_sources,
    place_devices,
    recompilation,
    remapped,
)
from hetero.compile.compiled_model import CompiledModel
from hetero.compile.compiler import Compiler, CompileRequest
from hetero.compile.stage_replicas import without_stand_ins
from hetero.extensions import Extensions
from hetero.has_devices import HasDevices
from hetero.observe.observed import Observed
from hetero.observe.sample_inputs import sample_shapes
from hetero.planning import PlanReport
from hetero.planning.cost import Costs
from hetero.planning.cost.profile import Progress
from hetero.planning.cost_planner import CostPlanner, cost_digest
from hetero.properties.scopes import EVERYWHERE, Scopes
from hetero.query.answers import Answers
from hetero.query.device_choice import (
    parse_counts,
)
from hetero.query.query import AffinitySource, pins_of, query_priority
from hetero.query.survey import Survey
from scheduler import create_executor
from scheduler.executor import Executor
from scheduler.vocabulary.rows import DeviceDescriptor

_log = logging.getLogger(__name__)

ExecutorKind = Literal["ray", "inprocess"]


class Core(HasDevices, Observed):
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
            raise ArgumentError(
                f"address={address!r} names a Ray cluster, but executor is {executor!r}."
            )
        if isinstance(plugins, str) or not isinstance(plugins, Iterable):
            raise ArgumentTypeError(
                f"plugins={plugins!r}: wanted a list of plugins, as ['my_module:MyPlugin']."
            )
        super().__init__()
        self._kind: ExecutorKind = executor
        self._address = address
        self._device_counts = parse_counts(devices)
        self._plugins = tuple(plugins)
        self._lock = threading.RLock()
        self._scopes = Scopes(
            lambda: self.device_descriptors, lambda *names: self.executor.get_property(*names)
        )
        self._extensions = Extensions()
        self._closed = False
        self._answers = Answers(lambda *question: self.executor.query(*question))
        self._planner = CostPlanner(lambda: self.executor, self._answers)
        self._compiler = Compiler(lambda: self.executor, self._answers, self._planner)

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
        with self._lock:
            if self._closed:
                raise ClusterError("this Core is closed; make another.")
            if self._executor is None:
                self._executor = create_executor(
                    self._kind,
                    address=self._address,
                    devices=self._device_counts,
                    plugins=self._plugins,
                    observers=self._observers,
                    **self._scopes.of_executor(self._kind),
                )
            return self._executor

    def set_property(
        self, device_name: str | Config = EVERYWHERE, properties: Config | None = None
    ) -> None:
        """Set options for models compiled later.

        Parameters
        ----------
        device_name : str or mapping
            A device's name or ``HETERO``; or, alone, options for every device that knows them.
        properties : mapping
            The options.
        """
        alone = properties is None
        options: Any = device_name if alone else properties
        if self._executor is not None or self._kind != "ray":
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
        if property is None:
            return self._scopes.get(EVERYWHERE, device_name)
        return self._scopes.get(device_name, property)

    def read_model(
        self, model: Source | Model, *, states: Mapping[str, str] | None = None
    ) -> Model:
        """Read a model from a path, bytes or a ModelProto; ``light:NAME`` is shipped by onnx.

        Parameters
        ----------
        model : path, bytes, onnx.ModelProto or Model
            The model.
        states : mapping of str to str, optional
            Input -> output that is its value in the next run of the same request: see
            `InferRequest.query_state`. Both are then no ports of the compiled model. ``*`` stands
            for any text, as in ``{"past.*": "present.*"}``. Otherwise what the model's own
            metadata says under ``hetero.states``, as JSON.

        Raises
        ------
        TensorNameError, TensorTypeError, TensorShapeError
            There is no such input or output, or a pair is not alike.
        """
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
        self._extensions.add(extension, on_ray=self._kind == "ray")

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
        return self._query(self.read_model(model), device_name, config or {}, affinity)[1]

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
        query, support = self._query(source, device_name, config or {}, affinity)
        told = {n: self._answers.timed(n, source, query.config.devices[n]) for n in query.devices}
        return Survey(
            source,
            device_name,
            self._described(query.devices),
            {name: answer for name, (answer, _) in told.items()},
            support,
            assign(source, support, query.pins),
            query.pins,
            {name: seconds for name, (_, seconds) in told.items()},
            dict(config or {}),
            sample_shapes(source, given) if (given := query.config.own["PLAN_SHAPES"]) else {},
        )

    def compile_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: AffinitySource | None = None,
        states: Mapping[str, str] | None = None,
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
        states : mapping of str to str, optional
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
        source = self.read_model(model, states=states)
        request = self._request(source, device_name, config, affinity)
        configs = {} if "CACHE_DIR" in config else request.config.devices
        return self._compiler.compile(source, request, cache_of(request.config.own, configs))

    def profile_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        seconds: float = 60.0,
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
            About how long to measure.
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
            As for `compile_model`. Pins hold. With the policy ``PRIORITY`` the plan is the priority
            list's, and only judged.
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
        return self._planner.verified(source, request, costs=costs, progress=progress)

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
        source: str | Path | bytes | bytearray | memoryview | BinaryIO,
        device_name: str | None = None,
        config: Config | None = None,
        remap: Mapping[str, str] | None = None,
        *,
        weights: Source | Model | None = None,
    ) -> CompiledModel:
        """Load what `CompiledModel.export_model` wrote, and deploy it.

        Parameters
        ----------
        source : path, bytes or binary file
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
        blob = ModelBlob(open_blob(source, given))
        blob.blob.verify()
        self._extensions.require(blob)
        model = blob.source()
        available = (
            self.available_devices if device_name is None else self.resolve_devices(device_name)
        )
        config = config or {}
        placed = place_devices(blob, available, remap)
        known = self._scopes.tables()
        if absent := {name: name for name in blob.used if name not in placed}:
            if device_name is None:
                raise absent_devices(blob, absent, available)
            _log.warning("model=%s: compiled again for %s", blob.name, device_name)
            options, pins = recompilation(blob, placed, config, known)
            return self.compile_model(model, device_name, options, affinity=pins)
        cuts = tuple(remapped(cut, placed) for cut in blob.cuts(model))
        split = import_config(
            blob, placed, self._scopes.split(config, placed.values()), config, known
        )
        pins = {name: placed[old] for name, old in blob.pins.items() if old in placed}
        used = dict.fromkeys(d for cut in cuts for d in cut.plan.devices)
        compilation = Compilation.of(self._described(used), split, Affinity(pins))
        sources = import_sources(blob, cuts, compilation)
        request = CompileRequest(tuple(used), split, compilation.pins, compilation)
        deployment = self._compiler.deploy(model, cuts, sources, request)
        return self._compiler.compiled(model, request, Cached(deployment, hit=False))

    def close(self) -> None:
        """Give back every device; ends the local Ray if this Core started it."""
        with self._lock:
            executor, self._executor = self._executor, None
            self._closed = True
        if executor is not None:
            executor.close()

    def _request(
        self, model: Model, device: str, config: Config, affinity: AffinitySource | None
    ) -> CompileRequest:
        devices, config = self._scopes.devices(device, config)
        split = self._scopes.split(config, devices)
        self._extensions.allow(model, split, self._scopes.tables())
        split = replace(split, own={**split.own, "COST_DIGEST": cost_digest(split.own)})
        pins = pins_of(model, devices, affinity)
        record = Compilation.of(self._described(devices), split, pins)
        return CompileRequest(devices, split, pins, record)

    def _query(
        self, model: Model, device: str, config: Config, affinity: AffinitySource | None
    ) -> tuple[CompileRequest, Support]:
        request = without_stand_ins(self._request(model, device, config, affinity))

        def ask(name: str, part: Model) -> Support:
            return self._answers.support(name, part, request.config.devices[name])

        return request, query_priority(model, request.devices, ask, request.pins)

    def _described(self, devices: Iterable[str]) -> tuple[DeviceDescriptor, ...]:
        by_name = {d.name: d for d in self.device_descriptors}
        return tuple(by_name[name] for name in devices)
