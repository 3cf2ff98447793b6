"""A simulated cluster whose devices crash, stop, are cut off, and restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from hetero.scheduler.device.task_queue import DeviceMachine
from hetero.scheduler.simulation.device import SimulatedCluster, SimulatedDevice, Workload
from hetero.scheduler.simulation.network import Network
from hetero.scheduler.simulation.simulator import Process, SimEvent, Simulator

if TYPE_CHECKING:
    from tests.simulation.supervised_client import SupervisedClient, SupervisedDeployment

#: Maximum time until the end of a process is noticed, and interval of heartbeats.
_END_NOTICE_S: Final = 0.05
_HEARTBEAT_S: Final = 0.25


class FaultyCluster(SimulatedCluster):
    """Devices by name, with faults.

    `timeout_s`: seconds without heartbeats after which a process counts as unreachable.
    `lease_s`: seconds without heartbeats after which a device frees a client's tensors and tasks.
    `max_tasks`: quota of a client on a device; None for the usual one.
    """

    def __init__(
        self,
        simulator: Simulator,
        network: Network,
        work: Workload,
        nodes: dict[str, str],
        *,
        timeout_s: float = 2.0,
        lease_s: float = 60.0,
        max_tasks: int | None = None,
    ) -> None:
        self.max_tasks = max_tasks
        super().__init__(simulator, network, work, nodes)
        self.timeout_s = timeout_s
        self.lease_s = lease_s
        self.clients: list[SupervisedClient] = []
        #: Restarts devices for all clients, if there are several.
        self.keeper: SupervisedClient | None = None
        #: (device's address, client's address) whose lease has ended.
        self.given_up: set[tuple[str, str]] = set()
        #: (from node, to node) -> end of the cut between them.
        self._cuts: dict[tuple[str, str], float] = {}
        #: Duration of a device's start in seconds; None: the start fails.
        self.start_s: Callable[[str], float | None] = lambda name: 0.0
        #: Delays of a call to a device's process, one per execution, and whether the response
        #: arrives: Ray may lose either, or repeat the call while the first one runs.
        self.call_outcome: Callable[[], tuple[Sequence[float], bool]] = lambda: ((0.0,), True)
        #: Called when a deployment uses a returned device again.
        self.on_returned: Callable[[SupervisedDeployment], None] = lambda deployment: None
        self._starting: dict[str, SimEvent] = {}
        network.on_lost = self._lost

    def _boot(self, name: str, life: int = 1) -> SimulatedDevice:
        device = super()._boot(name, life)
        if self.max_tasks is not None:
            device.loop._machine._max_tasks = self.max_tasks
        return device

    def end_quota(self) -> None:
        """Allow clients as many tasks as usual."""
        self.max_tasks = None
        for device in self.devices.values():
            device.loop._machine._max_tasks = DeviceMachine()._max_tasks

    def restart(self, name: str, address: str, keep: bool) -> SimulatedDevice | None:
        """Restart a device unless another client already has; return None if it fails.

        `address`: address of the process to replace. `keep`: use that process if it still runs.
        """
        if keep and self.devices[name].process.is_alive:
            return self.devices[name]
        while name in self._starting:
            self._starting[name].wait()
        device = self.devices[name]
        if device.process.is_alive and device.address != address:
            return device
        done = self._starting[name] = SimEvent(self.simulator)
        if device.process.is_alive:
            self._end(device, "it was started anew")
        took_s = self.start_s(name)
        self.simulator.sleep(0.01 if took_s is None else took_s)
        if took_s is not None:
            self.simulator.note(f"{name} starts")
            device = self._boot(name, device.life + 1)
        del self._starting[name]
        done.set()
        return None if took_s is None else device

    # Faults.

    def crash(
        self, name: str, cause: str = "its process has ended", notice_s: float | None = None
    ) -> None:
        """End a device's process; clients notice it after `notice_s`, by default a random time."""
        device = self.devices[name]
        if not device.process.is_alive:
            return
        self.simulator.note(f"{name} crashes")
        self._end(device, cause, notice_s)

    def _end(self, device: SimulatedDevice, cause: str, notice_s: float | None = None) -> None:
        device.process.is_alive = False
        self.network.forget(device.address)
        for client in self.clients:
            late_s = notice_s
            if late_s is None:
                late_s = _END_NOTICE_S * self.simulator.random.random()
            if not self.is_cut(device.process, client.process):
                client.process.do(late_s, 0.0, client.ended, device.address, cause)
        self._update_clients()

    def stop(self, process: Process, for_s: float) -> None:
        """Suspend a process for `for_s` seconds."""
        self.simulator.note(f"{process.name} stops for {for_s:.3f} s")
        process.stopped_until_s = max(process.stopped_until_s, self.simulator.now + for_s)
        self._schedule_updates(for_s)

    def end_client(self, client: SupervisedClient) -> None:
        """End a client's process; devices free its tensors and tasks at the end of its lease."""
        self.simulator.note(f"{client.process.name} crashes")
        client.process.is_alive = False
        self.network.forget(client.address)
        self.clients.remove(client)
        self.simulator.after(self.lease_s + self.timeout_s, self._end_lease, client)

    def _end_lease(self, client: SupervisedClient) -> None:
        for device in self.devices.values():
            device.process.do(0.0, 0.0, device.loop.client_gone, client.address)

    def cut(self, sender: str, receiver: str, for_s: float) -> None:
        """Lose all messages from one node to another for `for_s` seconds."""
        if sender != receiver:
            self.simulator.note(f"{sender} > {receiver} is cut for {for_s:.3f} s")
            until_s = self.simulator.now + for_s
            self._cuts[sender, receiver] = max(self._cuts.get((sender, receiver), 0.0), until_s)
            self._schedule_updates(for_s)

    def is_cut(self, sender: Process, receiver: Process) -> bool:
        """Return whether messages are lost between two processes."""
        return self.cut_s(sender, receiver) > 0.0

    def cut_s(self, sender: Process, receiver: Process) -> float:
        """Return the remaining time of a cut, in seconds."""
        return max(0.0, self._cuts.get((sender.node, receiver.node), 0.0) - self.simulator.now)

    def publish(self, device: SimulatedDevice) -> None:
        """Notify clients, with heartbeats of the pool supervisor, of a restarted device."""
        for client in self.clients:
            assert self.keeper is not None
            late_s = _HEARTBEAT_S + self.cut_s(self.keeper.process, client.process)
            client.process.do(late_s, 0.0, client.published, device)

    def is_reachable(self, sender: Process, receiver: Process) -> bool:
        """Return whether a process receives the heartbeats of another."""
        return sender.is_alive and not sender.is_stopped and not self.is_cut(sender, receiver)

    def _schedule_updates(self, for_s: float) -> None:
        """Schedule the updates of clients for a silence that begins now, and for its end."""
        self._update_clients()
        if for_s >= self.lease_s:
            self.simulator.after(self.lease_s + self.timeout_s, self._end_leases)
        self.simulator.after(for_s + 1e-6, self._update_clients)

    def _update_clients(self) -> None:
        """Make clients update the reachability of devices."""
        for client in self.clients:
            if not client.process.is_stopped:
                client.process.do(
                    _HEARTBEAT_S * self.simulator.random.random(), 0.0, client.update_reachability
                )

    def _end_leases(self) -> None:
        """Free tensors and tasks of clients that devices have not reached during the lease."""
        for device in self.devices.values():
            for client in self.clients:
                if device.process.is_alive and not self.is_reachable(
                    client.process, device.process
                ):
                    self.simulator.note(f"{device.name} gives {client.process.name} up")
                    self.given_up.add((device.address, client.address))
                    device.process.do(0.0, 0.0, device.loop.client_gone, client.address)

    def _lost(self, sender: Process, receiver: Process) -> None:
        """Notify clients, with a later heartbeat, of a lost message."""
        ends = {sender.name, receiver.name}
        addresses = [d.address for d in self.devices.values() if d.process.name in ends]
        late_s = _HEARTBEAT_S * (1 + self.simulator.random.random())
        cut_end_s = self.cut_s(sender, receiver)
        for client in self.clients:
            if client.process.name in ends or len(addresses) == 2:
                for address in addresses:
                    client.process.do(cut_end_s + late_s, 0.0, client.lost, address)
