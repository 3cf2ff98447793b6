"""Simulated devices: real device hosts and loops, whose programs take virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hetero.devices.plugin.program import RunContext, Value
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.lanes import LaneTask
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.simulation.network import Network
from hetero.scheduler.simulation.simulator import Cores, Process, SimEvent, Simulator
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.events import StageOpened, TaskRun
from hetero.scheduler.types.plan import Stage


class Workload:
    """Workload model of stages: outputs, durations and cores; simulations override it."""

    def run_s(self, device: str, stage: Stage, inputs: Sequence[Value]) -> float:
        """Return the duration of a run, in seconds."""
        return 0.0

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Value]) -> Sequence[Value]:
        """Return the outputs of a run, or raise its error."""
        raise NotImplementedError

    def num_streams(self, device: str, stage: Stage) -> int:
        """Return the maximum number of parallel runs of a stage."""
        return 1

    def num_cores(self, device: str) -> float:
        """Return the number of cores of the node that a run uses."""
        return 0.0

    def leave_s(self, stage: Stage) -> float:
        """Return the time that a device spends on the outputs after a run, in seconds."""
        return 0.0


class SimulatedCluster:
    """Simulated cluster: devices by name.

    `nodes`: device -> its node.
    `cost_s`: processing time of a device per message, in seconds.
    `cores`: node -> cores that its devices and clients share.
    """

    def __init__(
        self,
        simulator: Simulator,
        network: Network,
        work: Workload,
        nodes: dict[str, str],
        *,
        cost_s: float = 0.0,
        cores: Mapping[str, Cores] = {},
    ) -> None:
        self.simulator = simulator
        self.cores = cores
        self.network = network
        self.work = work
        self.nodes = nodes
        self.cost_s = cost_s
        #: The current process of each device.
        self.devices: dict[str, SimulatedDevice] = {}
        #: All processes of all devices, including ended ones.
        self.all: list[SimulatedDevice] = []
        #: Called when a task starts.
        self.on_run: Callable[[SimulatedDevice, Any], None] = lambda device, run: None
        for name in nodes:
            self._boot(name)

    def _boot(self, name: str, life: int = 1) -> SimulatedDevice:
        device = self.devices[name] = SimulatedDevice(self, name, life)
        self.all.append(device)
        return device

    def find(self, address: str) -> SimulatedDevice | None:
        """Return the current device process with an address; None if the process has ended."""
        return next((d for d in self.devices.values() if d.address == address), None)


class SimulatedDevice:
    """Simulated process of a device, with a host and a loop; `life` counts its restarts."""

    def __init__(self, cluster: SimulatedCluster, name: str, life: int) -> None:
        self.cluster, self.name, self.life = cluster, name, life
        self.node = cluster.nodes[name]
        self.work = cluster.work
        self.simulator = simulator = cluster.simulator
        address = f"{name}/{life}"
        self.process = process = Process(
            simulator, address, self.node, cluster.cores.get(self.node)
        )
        descriptor = DeviceDescriptor(name, "SIM", "0", self.node)
        plugin: Any = _Plugin(self)
        self.host = DeviceHost(descriptor, plugin, simulator.now_s)
        #: Loaded stages by deployment and stage number.
        self.stages: dict[tuple[str, int], Stage] = {}
        self.loop = DeviceLoop(
            self.host,
            lambda receive: cluster.network.connect(process, address, cluster.cost_s, receive),
            self._start,
            now_s=simulator.now_s,
        )
        self.address = self.loop.address

    def load(self, deployment: str, stage: Stage) -> int:
        """Load a stage; return the maximum number of its parallel runs."""
        self.stages[deployment, stage.index] = stage
        model: Any = _StageModel(f"stage {stage.index}", stage)
        return self.host.load_stage(deployment, stage.index, StageSource(model), 1)

    def open(self, stages: Sequence[StageOpened]) -> None:
        """Accept tasks for loaded stages."""
        for stage_message in stages:
            self.loop.open_stage(stage_message)

    def unload(self, deployment: str) -> None:
        """Unload the stages of a deployment."""
        self.loop.close_deployment(deployment)
        for key in [key for key in self.stages if key[0] == deployment]:
            del self.stages[key]

    def _start(self, loop: DeviceLoop, due: TaskRun | LaneTask) -> None:
        self.cluster.on_run(self, due)
        process = self.process
        if self.simulator.is_threaded:  # the program itself takes the time
            process.do(0.0, 0.0, loop.run, due)
            return
        stage_message = due.stage.description
        stage = self.stages[stage_message.deployment, stage_message.stage]
        took_s = self.work.run_s(self.name, stage, [due.tensors[n] for n in stage_message.inputs])
        began_s, leave_s = self.simulator.now, self.work.leave_s(stage)

        def computed() -> None:
            process.busy_s += self.simulator.now - began_s
            process.do(0.0, leave_s, loop.run, due)

        process.compute(took_s, self.work.num_cores(self.name), computed)

    def run(self, stage: Stage, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run a stage in virtual time."""
        if self.simulator.is_threaded:
            took_s = self.work.run_s(self.name, stage, inputs)
            woken = SimEvent(self.simulator)
            with context.on_cancel(woken.set):
                context.check_cancelled()
                self.process.compute(took_s, self.work.num_cores(self.name), woken.set)
                woken.wait()
            if leave_s := self.work.leave_s(stage):
                self.simulator.sleep(leave_s)
            while self.process.is_stopped:
                self.simulator.sleep(self.process.stopped_until_s - self.simulator.now)
            context.check_cancelled()
        return self.work.outputs(self.name, stage, inputs)


class _StageModel(NamedTuple):
    """Substitute for the model that the plugin compiles; its inputs and nodes are never read."""

    name: str
    stage: Stage
    inputs: tuple[()] = ()
    nodes: tuple[()] = ()


class _Plugin:
    """Plugin with the attributes that a device host uses."""

    leaves_outputs = False
    properties: Mapping[str, Any] = {}

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def compile_model(self, model: _StageModel, config: Mapping[str, Any]) -> _Program:
        return _Program(self._device, model.stage)


class _Program:
    """Compiled model with the attributes that a device host uses."""

    profiles = False

    def __init__(self, device: SimulatedDevice, stage: Stage) -> None:
        self._device = device
        self._stage = stage
        self.name = f"{device.name}:{stage.index}"
        self.output_names = stage.outputs

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        return self._device.run(self._stage, inputs, context)

    def get_property(self, name: str) -> Any:
        return self._device.work.num_streams(self._device.name, self._stage)

    def close(self) -> None: ...
