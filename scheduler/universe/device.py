"""Devices of a world by name: real hosts and loops, whose programs take virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hetero.devices.plugin.program import RunContext, Value
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.universe.network import Network
from hetero.scheduler.universe.world import Cores, Process, World, WorldEvent
from hetero.scheduler.vocabulary.events import Run, StageOpened
from hetero.scheduler.vocabulary.plan import Stage
from hetero.scheduler.vocabulary.rows import DeviceDescriptor


class Work:
    """What stages do, and for how long: a world's user says it."""

    def run_s(self, device: str, stage: Stage, inputs: Sequence[Value]) -> float:
        """Return how long a run takes."""
        return 0.0

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Value]) -> Sequence[Value]:
        """Return what a run gives, or raise what it raises."""
        raise NotImplementedError

    def num_streams(self, device: str, stage: Stage) -> int:
        """Return how many runs of a stage there may be at once."""
        return 1

    def num_cores(self, device: str) -> float:
        """Return how many of its node's cores a run computes on."""
        return 0.0

    def leave_s(self, stage: Stage) -> float:
        """Return how long a device is busy with what a run gave, once that has computed."""
        return 0.0


class PlayedCluster:
    """Devices by name.

    `nodes`: device -> its node.
    `cost_s`: seconds of a device's own that each message takes.
    `cores`: by node, where devices and clients share them.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        work: Work,
        nodes: dict[str, str],
        *,
        cost_s: float = 0.0,
        cores: Mapping[str, Cores] = {},
    ) -> None:
        self.world = world
        self.cores = cores
        self.network = network
        self.work = work
        self.nodes = nodes
        self.cost_s = cost_s
        #: Each device's present life.
        self.devices: dict[str, PlayedDevice] = {}
        #: Every life that there was.
        self.all: list[PlayedDevice] = []
        #: Told of each run that begins.
        self.on_run: Callable[[PlayedDevice, Run], None] = lambda device, run: None
        for name in nodes:
            self._boot(name)

    def _boot(self, name: str, life: int = 1) -> PlayedDevice:
        device = self.devices[name] = PlayedDevice(self, name, life)
        self.all.append(device)
        return device

    def find(self, address: str) -> PlayedDevice | None:
        """Return the life of a device that has an address, if it is the present one."""
        return next((d for d in self.devices.values() if d.address == address), None)


class PlayedDevice:
    """One life of a device: a process with a host and a loop."""

    def __init__(self, cluster: PlayedCluster, name: str, life: int) -> None:
        self.cluster, self.name, self.life = cluster, name, life
        self.node = cluster.nodes[name]
        self.work = cluster.work
        self.world = world = cluster.world
        address = f"{name}/{life}"
        self.process = process = Process(world, address, self.node, cluster.cores.get(self.node))
        descriptor = DeviceDescriptor(name, "PLAYED", "0", self.node)
        plugin: Any = _Plugin(self)
        self.host = DeviceHost(descriptor, plugin, world.now_s)
        #: What it was told to load: deployment and stage -> the stage.
        self.stages: dict[tuple[str, int], Stage] = {}
        self.loop = DeviceLoop(
            self.host,
            lambda receive: cluster.network.connect(process, address, cluster.cost_s, receive),
            self._start,
            now_s=world.now_s,
        )
        self.address = self.loop.address

    def load(self, deployment: str, stage: Stage) -> int:
        """Load a stage; return how many of its runs there may be at once."""
        self.stages[deployment, stage.index] = stage
        model: Any = _StageModel(f"stage {stage.index}", stage)
        return self.host.load_stage(deployment, stage.index, StageSource(model), 1)

    def open(self, stages: Sequence[StageOpened]) -> None:
        """Take tasks of stages that are loaded."""
        for opened in stages:
            self.loop.open_stage(opened)

    def unload(self, deployment: str) -> None:
        """Let go of a deployment's stages."""
        self.loop.close_deployment(deployment)
        for key in [key for key in self.stages if key[0] == deployment]:
            del self.stages[key]

    def _start(self, loop: DeviceLoop, due: Run) -> None:
        self.cluster.on_run(self, due)
        process = self.process
        if self.world.is_threaded:  # the program takes it
            process.do(0.0, 0.0, loop.run, due)
            return
        opened = due.stage.opened
        stage = self.stages[opened.deployment, opened.stage]
        took_s = self.work.run_s(self.name, stage, [due.tensors[n] for n in opened.inputs])
        began_s, leave_s = self.world.now, self.work.leave_s(stage)

        def computed() -> None:
            process.busy_s += self.world.now - began_s
            process.do(0.0, leave_s, loop.run, due)

        process.compute(took_s, self.work.num_cores(self.name), computed)

    def run(self, stage: Stage, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run a stage, for as long as that takes."""
        if self.world.is_threaded:
            took_s = self.work.run_s(self.name, stage, inputs)
            woken = WorldEvent(self.world)
            with context.on_cancel(woken.set):
                context.check_cancelled()
                self.process.compute(took_s, self.work.num_cores(self.name), woken.set)
                woken.wait()
            if leave_s := self.work.leave_s(stage):
                self.world.sleep(leave_s)
            while self.process.is_stopped:
                self.world.sleep(self.process.stopped_until_s - self.world.now)
            context.check_cancelled()
        return self.work.outputs(self.name, stage, inputs)


class _StageModel(NamedTuple):
    """What the plugin compiles; neither inputs nor nodes are looked at."""

    name: str
    stage: Stage
    inputs: tuple[()] = ()
    nodes: tuple[()] = ()


class _Plugin:
    """What a device host wants of a plugin."""

    leaves_outputs = False
    properties: Mapping[str, Any] = {}

    def __init__(self, device: PlayedDevice) -> None:
        self._device = device

    def compile_model(self, model: _StageModel, config: Mapping[str, Any]) -> _Program:
        return _Program(self._device, model.stage)


class _Program:
    """What a device host wants of a compiled model."""

    profiles = False

    def __init__(self, device: PlayedDevice, stage: Stage) -> None:
        self._device = device
        self._stage = stage
        self.name = f"{device.name}:{stage.index}"
        self.output_names = stage.outputs

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        return self._device.run(self._stage, inputs, context)

    def get_property(self, name: str) -> Any:
        return self._device.work.num_streams(self._device.name, self._stage)

    def close(self) -> None: ...
