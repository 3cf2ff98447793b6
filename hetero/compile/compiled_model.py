"""Compiled models: a deployed model with its subgraphs, properties and export."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, overload

from hetero.affinity.affinity import Affinity
from hetero.cache.blob import export_payloads, write_model
from hetero.cache.check import runtime_requirements
from hetero.compile.deployed_model import DeployedModel
from hetero.devices.errors import ArgumentTypeError, PropertyError, UnknownPropertyError
from hetero.devices.model.html_table import html_table
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.program import ExecutedNode, Value
from hetero.devices.plugin.properties import Config, unknown_property
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request, check_priority
from hetero.devices.request.target import Submission
from hetero.partition.partition import Partition, PlacedPartition, Subgraph
from hetero.planning.plan_report import PlanReport
from hetero.properties.compile_request import CompileRequest
from hetero.properties.replicas_property import REPLACED, REPLICAS, read_replaced
from hetero.properties.table import HETERO_PROPERTIES, public_value
from hetero.scheduler.executor import Deployment
from hetero.scheduler.formats.publish import publish
from hetero.scheduler.types.plan import Plan
from hetero.verify.verdict import REFERENCE, PartVerdict, Verification, is_vendor

#: Value of MODEL_PRIORITY -> priority of the model's requests.
_PRIORITIES: Final = {"LOW": -1, "MEDIUM": 0, "HIGH": 1}


class CompiledModel(BaseCompiledModel):
    """A model that is compiled and deployed on one or several devices.

    `Core.compile_model` and `Core.import_model` create it. Call it for a single inference, or
    create requests for more. Use it as a context manager to release the devices' memory; otherwise
    the memory is released when the model and all its requests have been garbage-collected.
    """

    def __init__(
        self, deployment: Deployment, request: CompileRequest, *, loaded_from_cache: bool = False
    ) -> None:
        source = deployment.routes[0].origin.partition.source
        variables = variables_of(source)
        super().__init__(source, variables)
        self.request: Final = request
        self._configuration = Configuration(
            HETERO_PROPERTIES, f"model {self.name!r}", request.hetero_config
        )
        #: Of every device in the list, including devices without nodes.
        self._device_configurations = {
            d.name: Configuration(
                d.properties, f"model {self.name!r} on {d.name}", request.configs[d.name]
            )
            for d in request.descriptors
        }
        self._loaded_from_cache = loaded_from_cache
        #: Seconds that the cache saved: those of the compilation that filled it, minus those of
        #: this one; None without a cache hit.
        self.cache_saved_s: float | None = None
        #: Verdicts of the compilation, and the reason why other subgraphs have none.
        self._verified: tuple[Verification, str] = (Verification(), "")
        profiles = any(
            configuration.get("PERF_COUNT")
            for configuration in self._device_configurations.values()
        )
        self._target: Final = DeployedModel(
            deployment,
            profiles=profiles,
            optional_inputs=self.source.optional_inputs,
            variables=variables,
        )

    def __repr__(self) -> str:
        devices = ", ".join(self.get_property("EXECUTION_DEVICES"))
        num_subgraphs = len(self.subgraphs)
        subgraphs = f"{num_subgraphs} subgraph{'' if num_subgraphs == 1 else 's'}"
        return f"<CompiledModel {self.plan.name!r}: {subgraphs} on {devices}>"

    def _repr_html_(self) -> str:
        rows = [
            (s.index, s.device, len(s.node_names), ", ".join(s.inputs), ", ".join(s.outputs))
            for s in self.subgraphs
        ]
        heads = ("subgraph", "device", "nodes", "inputs", "outputs")
        return html_table(f"Compiled model {self.plan.name}", heads, rows)

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def verification(self) -> Verification:
        """Verdicts on its subgraphs, including those of a plan after the loss of a device.

        Empty with ``VERIFY=NO``.
        """
        verification, reason = self._verified
        if self.request.hetero_config["VERIFY"] == "NO":
            return verification
        verified = {(v.device, v.node_names) for v in verification.verdicts}
        vendors = {d.name for d in self.request.descriptors if is_vendor(d)}
        unverified = [
            PartVerdict(s.device, REFERENCE, s.node_names, "not verified", reason)
            for placement in self.placements
            for s in placement.partition.subgraphs
            if s.device in vendors and (s.device, s.node_names) not in verified
        ]
        return replace(verification, verdicts=(*verification.verdicts, *unverified))

    def set_verification(self, verification: Verification, reason: str) -> None:
        """Set the verdicts of the compilation, and why subgraphs without a verdict have none."""
        self._verified = verification, reason

    @property
    def target(self) -> DeployedModel:
        """The deployment that its requests run on."""
        return self._target

    @property
    def deployment(self) -> Deployment:
        """The present deployment; another one after a device ran out of memory."""
        return self._target.deployment

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs with a default value; a request may override it by the input's name.

        The first request that does so compiles the model again, with that input.
        """
        return self.target.optional_inputs

    @property
    def placements(self) -> tuple[PlacedPartition, ...]:
        """The partitions with their devices: one, or several that share the requests.

        After the permanent loss of a device, those on the remaining devices.
        """
        return tuple(route.origin for route in self.deployment.routes)

    @property
    def cuts(self) -> tuple[PlacedPartition, ...]:
        """Deprecated alias of `placements`."""
        message = "CompiledModel.cuts is now CompiledModel.placements"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.placements

    @property
    def partition(self) -> Partition:
        """The first placement's partition."""
        return self.placements[0].partition

    @property
    def affinity(self) -> Affinity:
        """The first placement's affinity: the device of each node, with the reason."""
        return self.placements[0].affinity

    @property
    def plan(self) -> Plan:
        """The first placement's plan."""
        return self.placements[0].plan

    @property
    def stage_numbers(self) -> tuple[tuple[int, ...], ...]:
        """The stage numbers of each placement; placements may share stages."""
        return tuple(route.stages for route in self.deployment.routes)

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The subgraphs of all placements, in topological order.

        Each has an index, a device, node names, inputs and outputs.
        """
        subgraphs_by_number = {
            number: replace(subgraph, index=number)
            for route in self.deployment.routes
            for number, subgraph in zip(route.stages, route.origin.partition.subgraphs, strict=True)
        }
        return tuple(subgraphs_by_number.values())

    @property
    def num_replicas(self) -> int:
        """The present number of replicas, which changes if ``REPLICAS`` is ``auto`` or a range."""
        autoscaler = self.target.autoscaler
        return len(self.placements) if autoscaler is None else autoscaler.num_replicas

    @property
    def shares(self) -> tuple[float, ...]:
        """The placements' shares of the requests."""
        return tuple(placement.share for placement in self.placements)

    @property
    def plan_report(self) -> PlanReport | None:
        """The report of the cost planner, if it planned this model."""
        report: PlanReport | None = self.placements[0].report
        return report

    def submit(
        self, values: Mapping[str, Value], *, timeout_s: float | None = None, priority: int = 0
    ) -> Submission | CompletedSubmission:
        """Start a request with checked values; `InferRequest` uses it.

        Parameters
        ----------
        values : mapping of str to value
            The value of each input port.
        timeout_s : float, optional
            Seconds until the request fails with DeadlineError.
        priority : int
            See `InferRequest.priority`.
        """
        request = Request(timeout_s=timeout_s, priority=check_priority(priority))
        return self.target.submit(values, request)

    def generate(self, ids: Any, max_new_tokens: int = 256, **options: Any) -> Any:
        """Generate the tokens that follow a prompt; for models of `hetero.read_decoder`.

        Parameters
        ----------
        ids : sequence of int, or of such
            The prompt; or several prompts, which are generated as one batch.
        max_new_tokens : int
            Maximum number of tokens to generate.
        **options : object
            Sampling and stopping options: see `hetero.apps.generate.generation.generate`.

        Returns
        -------
        Generation or BatchGeneration
            An iterator over the tokens, also for asyncio; a `BatchGeneration` for several prompts.
        """
        # The core does not depend on its applications; this is a shortcut to one of them.
        from hetero.apps.generate.generation import generate

        return generate(self, ids, max_new_tokens, **options)

    def get_context(self) -> RemoteContext:
        """Return the memory of the device that receives the first inputs."""
        return self.target.context()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
    ) -> list[Value]:
        """Run one inference and return some outputs, as ``run`` of ONNX Runtime's sessions.

        Parameters
        ----------
        output_names : sequence of str or None
            The names of the outputs to return, in order; None for all.
        input_feed : mapping of str to value
            The value of each input.
        timeout_s : float, optional
            Seconds until the inference fails with DeadlineError.

        Raises
        ------
        TensorNameError
            No such output, or the inputs are incomplete or unknown.
        """
        ports = self.outputs if output_names is None else [*map(self.output, output_names)]
        results = self._own_request().infer(input_feed, share_inputs=True, timeout_s=timeout_s)
        return [results[port] for port in ports]

    def get_property(self, name: str) -> Any:
        """Return a property of the compiled model, or of its devices.

        Parameters
        ----------
        name : str
            A property of HETERO, or an option with the same value on all devices of the model
            that have it. ``DEVICE_PROPERTIES`` contains the options of each device.

        Raises
        ------
        UnknownPropertyError
            Neither HETERO nor a device has the property.
        PropertyError
            The value differs between devices.
        """
        return public_value(name, self._property(name))

    def _property(self, name: str) -> Any:
        match name:
            case "NETWORK_NAME":
                return self.name
            case "RUNTIME_REQUIREMENTS":
                return runtime_requirements(
                    d for d in self.request.descriptors if d.name in self._execution_devices
                )
            case "PERF_COUNT":
                return self._target.profiles
            case "LOADED_FROM_CACHE":
                return self._loaded_from_cache
            case "SUPPORTED_PROPERTIES":
                device_id = ["DEVICE_ID"] if len(self._execution_devices) == 1 else []
                names = [name for name in HETERO_PROPERTIES if name != "COMPATIBILITY_CHECK"]
                return dict.fromkeys([*names, *device_id], "RO")
            case "COMPATIBILITY_CHECK":
                raise UnknownPropertyError(
                    f"no property 'COMPATIBILITY_CHECK' on model {self.name!r}: it is a property "
                    "of devices. Call Core.get_property('HETERO', 'COMPATIBILITY_CHECK', "
                    "{'RUNTIME_REQUIREMENTS': ...}) with this model's RUNTIME_REQUIREMENTS.",
                    property=name,
                )
            case "EXECUTION_DEVICES":
                return self._execution_devices
            case "MULTI_DEVICE_PRIORITIES":
                return tuple(self._device_configurations)
            case "DEVICE_ID":
                return self._device_id()
            case "DEVICE_PROPERTIES":
                return self._device_options()
            case "HETERO_NUMBER_OF_SUBMODELS":
                return len(self.subgraphs)
            case "OPTIMAL_NUMBER_OF_INFER_REQUESTS":
                return self._optimal_num_requests()
            case _ if name in REPLACED:
                replicas = self._configuration.get(REPLICAS.name)
                return read_replaced(name, replicas, stacklevel=3)
            case _ if name in HETERO_PROPERTIES:
                return self._configuration.get(name)
            case _:
                return self._common_device_property(name)

    def _common_device_property(self, name: str) -> Any:
        """Return an option with the same value on all devices that run the model and have it."""
        devices = self._execution_devices or tuple(self._device_configurations)
        values_by_device = {
            device: options[name]
            for device, options in self._device_options().items()
            if device in devices and name in options
        }
        values = list(values_by_device.values())
        if not values:
            names = {n for options in self._device_options().values() for n in options}
            raise unknown_property(name, f"model {self.name!r}", {*HETERO_PROPERTIES, *names})
        if any(value != values[0] for value in values):
            differences = ", ".join(
                f"{device} has {value!r}" for device, value in values_by_device.items()
            )
            raise PropertyError(
                f"model {self.name!r}: devices differ in {name}: {differences}. Read "
                "DEVICE_PROPERTIES instead.",
                property=name,
            )
        return values[0]

    def _default_priority(self) -> int:
        return _PRIORITIES[self._configuration.get("MODEL_PRIORITY")]

    def _device_id(self) -> str:
        """Return the id of the only device that runs the model; PropertyError for several."""
        devices = self._execution_devices
        if len(devices) != 1:
            raise PropertyError(
                f"model {self.name!r}: DEVICE_ID: expected one device, got "
                f"{', '.join(devices) or 'none'}. Read EXECUTION_DEVICES instead.",
                property="DEVICE_ID",
            )
        return self.request.descriptor(devices[0]).device_id

    @property
    def _execution_devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.device for s in self.subgraphs))

    def _device_options(self) -> dict[str, dict[str, Any]]:
        return {
            device: configuration.effective()
            for device, configuration in self._device_configurations.items()
        }

    def _optimal_num_requests(self) -> int:
        limit = self._configuration.get("PERFORMANCE_HINT_NUM_REQUESTS")
        # With dynamic batching, enough requests for that number of full batches.
        optimal = optimal_num_requests(self.placements, self.request.configs)
        optimal *= max(1, self.request.batch_size)
        if (autoscaler := self.target.autoscaler) is not None:
            policy = autoscaler.policy
            optimal = math.ceil(optimal * policy.maximum / policy.minimum)
        return min(optimal, limit or optimal)

    def _executed_plans(self) -> Sequence[Sequence[ExecutedNode]]:
        return [self.target.executed_nodes(stages) for stages in self.stage_numbers]

    @overload
    def export_model(self, model_stream: None = None, *, weightless: bool = False) -> bytes: ...

    @overload
    def export_model(
        self, model_stream: str | Path | BinaryIO, *, weightless: bool = False
    ) -> None: ...

    def export_model(
        self, model_stream: str | Path | BinaryIO | None = None, *, weightless: bool = False
    ) -> bytes | None:
        """Export the compiled model as a blob, which `Core.import_model` reads.

        Parameters
        ----------
        model_stream : path or binary file, optional
            The target; a file is written atomically.
        weightless : bool
            Whether to omit the weights of the original model, which `Core.import_model` then needs
            as an argument. The blob still contains weights that devices converted.

        Returns
        -------
        bytes or None
            The blob, if there is no target.
        """
        if (
            model_stream is not None
            and not isinstance(model_stream, str | Path)
            and not hasattr(model_stream, "write")
        ):
            raise ArgumentTypeError(
                "export_model: expected a path or a binary file; got "
                f"{type(model_stream).__name__}."
            )
        routes = self.deployment.routes
        placements = [route.origin for route in routes]
        payloads = export_payloads(routes, self.deployment.export)

        def write(file: BinaryIO) -> int:
            return write_model(file, placements, self.request, payloads, weightless=weightless)

        if isinstance(model_stream, str | Path):
            publish(Path(model_stream), write)
            return None
        if model_stream is not None:
            write(model_stream)
            return None
        stream = io.BytesIO()
        write(stream)
        return stream.getvalue()

    def story(self, request_id: int) -> Any:
        """Return the history of a request: its events."""
        return self.deployment.story(request_id)

    def close(self) -> None:
        """Release the devices' memory for the model; later requests fail."""
        self.release_memory()
        self.target.close()


def optimal_num_requests(
    placements: Sequence[PlacedPartition], configs: Mapping[str, Config]
) -> int:
    """Return the smallest number of requests in flight that reaches the maximum throughput.

    By the asymptotic bounds of closed queueing networks, this is the latency divided by the
    bottleneck, and at least one request per level of stages, times the streams of a device. One
    more request per placement hides the transfers.
    """
    optimal = sum(1 + max(placement.plan.levels, default=0) for placement in placements)
    report = placements[0].report
    if report is not None and report.bottleneck_s > 0:
        optimal = max(optimal, math.ceil(report.latency_s / report.bottleneck_s))
    devices = {device for placement in placements for device in placement.plan.devices}
    streams = max((configs[device].get("NUM_STREAMS", 1) for device in devices), default=1)
    return int(optimal * max(1, streams)) + len(placements)
