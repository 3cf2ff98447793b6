"""Tensors of drawn plans, whose stages list them in unlike orders, keep their names on every path:
a direct run in the caller's thread, one that the state machine adopts, packed messages, and
messages with names.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.scheduler.client.request_program import RequestProgram
from hetero.scheduler.inprocess import InProcessDeployment
from hetero.scheduler.simulation.client import SimulatedClient
from hetero.scheduler.simulation.device import SimulatedCluster, Workload
from hetero.scheduler.simulation.network import Link, Network
from hetero.scheduler.simulation.simulator import Simulator
from hetero.scheduler.types.placement import single_placement
from hetero.scheduler.types.plan import Plan, Stage
from tests.simulation.models import expected_values, stage_output

NODES = {"A": "n0", "B": "n1", "C": "n1"}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan; each stage reads some earlier tensors and computes others, in any order."""
    fresh = (f"t{number}" for number in itertools.count())

    def some(names: Sequence[str]) -> tuple[str, ...]:
        ordered = draw(st.permutations(names))
        return tuple(ordered[: draw(st.integers(1, min(4, len(ordered))))])

    inputs = [*itertools.islice(fresh, draw(st.integers(1, 3)))]
    tensors, stages = list(inputs), []
    for index in range(draw(st.integers(1, 4))):
        outputs = tuple(itertools.islice(fresh, draw(st.integers(1, 4))))
        device = draw(st.sampled_from([*NODES]))
        stages.append(Stage(index, device, some(tensors), outputs, (f"n{index}",)))
        tensors += outputs
    outputs = some(tensors[len(inputs) :])
    input_ports, output_ports = (
        tuple(TensorSpec(name, "i64", (None,)) for name in names) for names in (inputs, outputs)
    )
    return Plan("drawn", input_ports, output_ports, tuple(stages))


class NamedValues(Workload):
    """Workload whose outputs depend on their names and on the order of the inputs."""

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        return [stage_output(name, inputs) for name in stage.outputs]


class Deployed:
    """Plan on simulated devices without faults."""

    def __init__(self, plan: Plan) -> None:
        self.simulator = Simulator(is_traced=True)
        network = Network(self.simulator, lambda sender, receiver: Link())
        self.cluster = SimulatedCluster(self.simulator, network, NamedValues(), NODES)
        self.deployment = SimulatedClient(self.cluster, "client", "n0").deploy(
            single_placement(plan)
        )
        inputs = [spec.name for spec in plan.inputs]
        self.inputs = {name: np.full(2, 100 + i, np.int64) for i, name in enumerate(inputs)}
        values = expected_values(plan.stages, self.inputs)
        self.expected = {name: values[name] for name in plan.output_names}

    def check(self, submission: Any) -> None:
        """Compare the outputs of a submission."""
        self.simulator.run()
        outputs: Mapping[str, np.ndarray] = submission.future.result(0).outputs
        assert outputs.keys() == self.expected.keys()
        for name, value in self.expected.items():
            np.testing.assert_array_equal(outputs[name], value, err_msg=name)

    @property
    def num_packed(self) -> int:
        """Number of packed messages."""
        assert self.simulator.lines is not None
        return sum(": lane" in line for _, line in self.simulator.lines)


@given(plan=plans())
@settings(max_examples=30, deadline=None)
def test_packed_messages_keep_names_of_tensors(plan):
    deployed = Deployed(plan)
    deployed.check(deployed.deployment.submit(deployed.inputs))
    num_packed = deployed.num_packed
    assert num_packed >= len(plan.stages)
    # Requests with a time limit start in the state machine; those with a profile are not packed.
    deployed.check(deployed.deployment.submit(deployed.inputs, Request(timeout_s=9.0)))
    assert deployed.num_packed == 2 * num_packed
    deployed.check(deployed.deployment.submit(deployed.inputs, Request(profile=True)))
    assert deployed.num_packed == 2 * num_packed


@given(plan=plans(), data=st.data())
@settings(max_examples=30, deadline=None)
def test_direct_run_keeps_names_of_tensors(plan, data):
    deployed = Deployed(plan)
    deployment: Any = deployed.deployment
    stages: list[Any] = [
        deployed.cluster.devices[stage.device].loop.direct_stage(deployment.key, stage.index)
        for stage in plan.stages
    ]
    busy = data.draw(st.none() | st.integers(0, len(stages) - 1))
    if busy is not None:
        stages[busy].run = lambda inputs, left, task: None
    program = RequestProgram(
        deployment.placement,
        stages,
        deployment._runner,
        deployment._deployments.memory,
        resume=partial(InProcessDeployment._resume, deployment),
        learn=lambda took_s, nbytes: None,
    )
    submission = program.run(deployed.inputs, Request(inline=True))
    assert isinstance(submission, CompletedSubmission) == (busy is None)
    deployed.check(submission)
    # Resident outputs stay on their devices; the client has references.
    resident = tuple(data.draw(st.sets(st.sampled_from(plan.output_names))))
    kept = program.run(deployed.inputs, Request(inline=True, resident_outputs=resident))
    assert isinstance(kept, CompletedSubmission) == (busy is None)
    deployed.simulator.run()
    outputs = dict(kept.future.result(0).outputs)
    assert {name for name in outputs if type(outputs[name]) is ResidentTensor} == set(resident)
    for name in resident:
        bundle, key = outputs[name]
        loop = deployed.cluster.devices[bundle.device].loop
        stored = loop._kept.find(deployment._channel.address, bundle.key)
        outputs[name] = stored[key]
        np.testing.assert_array_equal(outputs[name], deployed.expected[name], err_msg=name)
        assert outputs[name].shape == bundle.tensor(key).shape
