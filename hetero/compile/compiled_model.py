"""A model compiled over several devices: its subgraphs, deployment, properties and blob."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, overload

from hetero.affinity.affinity import Affinity
from hetero.cache.blob import export_payloads, write_model
from hetero.compile.deployed_model import DeployedModel
from hetero.devices.errors import ArgumentTypeError, PropertyError
from hetero.devices.model.html_table import html_table
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.program import ExecutedNode, Value
from hetero.devices.plugin.properties import Config, unknown_property
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.partition.partition import Partition, PlacedPartition, Subgraph
from hetero.planning.plan_report import PlanReport
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import HETERO_PROPERTIES, public_value
from hetero.scheduler.executor import Deployment, Submission
from hetero.scheduler.formats.publish import publish
from hetero.scheduler.vocabulary.plan import Plan


class CompiledModel(BaseCompiledModel):
    """A deployed plan with names; made by `Core.compile_model` and `Core.import_model`.

    Use it as a function for one inference, make requests for more, and as a context manager to
    give back what the devices hold for it; without one they do so once nothing holds the model or
    a request of it any more.
    """

    def __init__(
        self, deployment: Deployment, request: CompileRequest, *, loaded_from_cache: bool = False
    ) -> None:
        source = deployment.routes[0].origin.partition.source
        variables = variables_of(source)
        super().__init__(source, variables)
        self.deployment = deployment
        self.request: Final = request
        self._configuration = Configuration(
            HETERO_PROPERTIES, f"model {self.name!r}", request.hetero_config
        )
        #: Every device of the list has one, also those that got no node.
        self._of_devices = {
            d.name: Configuration(
                d.properties, f"model {self.name!r} on {d.name}", request.configs[d.name]
            )
            for d in request.descriptors
        }
        self._loaded_from_cache = loaded_from_cache
        profiles = any(held.get("PERF_COUNT") for held in self._of_devices.values())
        self._target: Final = DeployedModel(
            deployment,
            profiles=profiles,
            optional_inputs=self.source.optional_inputs,
            variables=variables,
        )

    def __repr__(self) -> str:
        devices = ", ".join(self.get_property("EXECUTION_DEVICES"))
        count = len(self.subgraphs)
        what = f"{count} subgraph{'' if count == 1 else 's'}"
        return f"<CompiledModel {self.plan.name!r}: {what} on {devices}>"

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
    def target(self) -> DeployedModel:
        """What its requests run on."""
        return self._target

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that have a default; given by name, they are used instead of it.

        The first request that gives one has the model compiled once more, with that input.
        """
        return self.target.optional_inputs

    @property
    def cuts(self) -> tuple[PlacedPartition, ...]:
        """How the model is cut and placed: in one way, or in several whose plans share requests.

        Where devices are gone for good, as it was placed on those that are left.
        """
        return tuple(route.origin for route in self.deployment.routes)

    @property
    def partition(self) -> Partition:
        """The partition of the first cut."""
        return self.cuts[0].partition

    @property
    def affinity(self) -> Affinity:
        """The affinity of the first cut: which device each node has, and why."""
        return self.cuts[0].affinity

    @property
    def plan(self) -> Plan:
        """The plan of the first cut."""
        return self.cuts[0].plan

    @property
    def stage_numbers(self) -> tuple[tuple[int, ...], ...]:
        """The indices of each cut's subgraphs; what cuts have in common has one."""
        return tuple(route.stages for route in self.deployment.routes)

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """Index, device, node names, inputs and outputs of each subgraph, in running order.

        Where several plans share the requests, those of all, numbered through.
        """
        found = {
            number: replace(subgraph, index=number)
            for route in self.deployment.routes
            for number, subgraph in zip(route.stages, route.origin.partition.subgraphs, strict=True)
        }
        return tuple(found.values())

    @property
    def shares(self) -> tuple[float, ...]:
        """How the plans share the requests."""
        return tuple(cut.share for cut in self.cuts)

    @property
    def plan_report(self) -> PlanReport | None:
        """How the plan was chosen, where this compilation chose it by cost."""
        report: PlanReport | None = self.cuts[0].report
        return report

    def submit(
        self, values: Mapping[str, Value], *, timeout_s: float | None = None, priority: int = 0
    ) -> Submission | CompletedSubmission:
        """Start a request on checked values: what `InferRequest` does.

        Parameters
        ----------
        values : mapping of str to value
            One for each input port.
        timeout_s : float, optional
            Seconds until the request fails with DeadlineError.
        priority : int
            As `InferRequest.priority`.
        """
        return self.target.submit(values, Request(timeout_s=timeout_s, priority=priority))

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
        """Return the memory of the device that takes the first inputs."""
        return self.target.context()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
    ) -> list[Value]:
        """Run once and return some outputs: what ONNX Runtime's sessions call ``run``.

        Parameters
        ----------
        output_names : sequence of str or None
            The outputs that are wanted, in this order; None for all.
        input_feed : mapping of str to value
            One for each input.
        timeout_s : float, optional
            Seconds until the answer must be there; what its run options are for.

        Raises
        ------
        TensorNameError
            There is no such output, or not these inputs.
        """
        ports = self.outputs if output_names is None else [*map(self.output, output_names)]
        results = self._own_request().infer(input_feed, share_inputs=True, timeout_s=timeout_s)
        return [results[port] for port in ports]

    def get_property(self, name: str) -> Any:
        """Return a property of the compiled model, or of its devices.

        Parameters
        ----------
        name : str
            One of HETERO's properties; or an option of devices, which has to be the same on all
            that run the model and have it. ``DEVICE_PROPERTIES`` has those of each device.

        Raises
        ------
        UnknownPropertyError
            Neither HETERO nor a device has it.
        PropertyError
            Devices differ in it.
        """
        computed: dict[str, Callable[[], Any]] = {
            "NETWORK_NAME": lambda: self.name,
            "PERF_COUNT": lambda: self._target.profiles,
            "LOADED_FROM_CACHE": lambda: self._loaded_from_cache,
            "SUPPORTED_PROPERTIES": lambda: dict.fromkeys(HETERO_PROPERTIES, "RO"),
            "EXECUTION_DEVICES": lambda: self._executing,
            "MULTI_DEVICE_PRIORITIES": lambda: tuple(self._of_devices),
            "DEVICE_PROPERTIES": self._device_options,
            "HETERO_NUMBER_OF_SUBMODELS": lambda: len(self.subgraphs),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self._enough_requests,
        }
        if name in computed:
            return public_value(name, computed[name]())
        if name in HETERO_PROPERTIES:
            return public_value(name, self._configuration.get(name))
        used = self._executing or tuple(self._of_devices)
        found = {d: o[name] for d, o in self._device_options().items() if d in used and name in o}
        values = list(found.values())
        if not values:
            known = {n for o in self._device_options().values() for n in o}
            raise unknown_property(name, f"model {self.name!r}", {*HETERO_PROPERTIES, *known})
        if any(value != values[0] for value in values):
            shown = ", ".join(f"{device} has {value!r}" for device, value in found.items())
            raise PropertyError(
                f"model {self.name!r}: devices differ in {name}: {shown}. Read DEVICE_PROPERTIES.",
                property=name,
            )
        return public_value(name, values[0])

    @property
    def _executing(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.device for s in self.subgraphs))

    def _device_options(self) -> dict[str, dict[str, Any]]:
        return {device: held.effective() for device, held in self._of_devices.items()}

    def _enough_requests(self) -> int:
        most = self._configuration.get("PERFORMANCE_HINT_NUM_REQUESTS")
        # Where requests are joined, so many batches are full.
        enough = optimal_requests(self.cuts, self.request.configs)
        enough *= max(1, self.request.batch_size)
        return min(enough, most or enough)

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
        """Write the compiled model as a blob, which `Core.import_model` reads.

        Parameters
        ----------
        model_stream : path or binary file, optional
            Where to; a file appears whole or not at all.
        weightless : bool
            Whether to leave out the weights that the model's file has: `Core.import_model` is
            given that then. What devices made of weights stays in.

        Returns
        -------
        bytes or None
            The blob, where no target is given.
        """
        if (
            model_stream is not None
            and not isinstance(model_stream, str | Path)
            and not hasattr(model_stream, "write")
        ):
            raise ArgumentTypeError(
                f"give a path or a binary file to write to; got {type(model_stream).__name__}."
            )
        routes = self.deployment.routes
        cuts = [route.origin for route in routes]
        payloads = export_payloads(routes, self.deployment.export)

        def write(file: BinaryIO) -> int:
            return write_model(file, cuts, self.request, payloads, weightless=weightless)

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
        """Return the life of a request, event by event."""
        return self.deployment.story(request_id)

    def close(self) -> None:
        """Give back what the devices hold for the model; its requests fail from then on."""
        self.release_memory()
        self.target.close()


def optimal_requests(cuts: Sequence[PlacedPartition], configs: Mapping[str, Config]) -> int:
    """Return how many requests reach the throughput that the slowest device allows.

    That takes as many as pass through in the time of one, and for stages that come back to a
    device one a level, times the streams that a device runs at once; one more for each plan hides
    the hand-over. Source: the asymptotic bounds of closed queueing networks.
    """
    enough = sum(1 + max(cut.plan.levels, default=0) for cut in cuts)
    report = cuts[0].report
    if report is not None and report.bottleneck_s > 0:
        enough = max(enough, math.ceil(report.latency_s / report.bottleneck_s))
    used = {device for cut in cuts for device in cut.plan.devices}
    streams = max((configs[device].get("NUM_STREAMS", 1) for device in used), default=1)
    return int(enough * max(1, streams)) + len(cuts)
