"""A cluster whose devices may crash, stop, be cut off, and be started again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from hetero.scheduler.simulation.device import PlayedCluster, PlayedDevice, Work
from hetero.scheduler.simulation.network import Network
from hetero.scheduler.simulation.world import Process, World, WorldEvent

if TYPE_CHECKING:
    from tests.simulation.kept_client import KeptClient

#: Seconds until the end of a process is heard on its node, and a lost message is missed, at most.
_HEARD_S: Final = 0.05
_BEAT_S: Final = 0.25


class FaultyCluster(PlayedCluster):
    """Devices by name, and what happens to them.

    `timeout_s`: seconds of silence after which a process is not heard.
    `lease_s`: seconds of silence after which a device lets go of what a client has there.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        work: Work,
        nodes: dict[str, str],
        *,
        timeout_s: float = 2.0,
        lease_s: float = 60.0,
    ) -> None:
        super().__init__(world, network, work, nodes)
        self.timeout_s = timeout_s
        self.lease_s = lease_s
        self.clients: list[KeptClient] = []
        #: Who ends devices and starts them anew for all clients, where there are several.
        self.keeper: KeptClient | None = None
        #: (device's address, client's) of clients that a device has not heard for long.
        self.given_up: set[tuple[str, str]] = set()
        #: (from node, to node) -> until when nothing comes through.
        self._cuts: dict[tuple[str, str], float] = {}
        #: Seconds that a start takes; None: it fails.
        self.start_s: Callable[[str], float | None] = lambda name: 0.0
        #: How much later a call to a device's process is made, each time that it is, and whether
        #: its answer comes: Ray may lose either, or call again while the first call runs.
        self.fate: Callable[[], tuple[Sequence[float], bool]] = lambda: ((0.0,), True)
        self._starting: dict[str, WorldEvent] = {}
        network.on_lost = self._lost

    def revive(self, name: str, address: str, keep: bool) -> PlayedDevice | None:
        """Have a device live, in a fiber: start it anew, unless somebody has; None: it fails.

        `address`: of the life that is given up, whose process ends; `keep`: unless it is kept.
        """
        if keep and self.devices[name].process.is_alive:
            return self.devices[name]
        while name in self._starting:
            self._starting[name].wait()
        device = self.devices[name]
        if device.process.is_alive and device.address != address:
            return device
        done = self._starting[name] = WorldEvent(self.world)
        if device.process.is_alive:
            self._end(device, "it was started anew")
        took_s = self.start_s(name)
        self.world.sleep(0.01 if took_s is None else took_s)
        if took_s is not None:
            self.world.note(f"{name} starts")
            device = self._boot(name, device.life + 1)
        del self._starting[name]
        done.set()
        return None if took_s is None else device

    # What happens.

    def crash(self, name: str, cause: str = "its process has ended") -> None:
        """End a device's process."""
        device = self.devices[name]
        if not device.process.is_alive:
            return
        self.world.note(f"{name} crashes")
        self._end(device, cause)

    def _end(self, device: PlayedDevice, cause: str) -> None:
        device.process.is_alive = False
        self.network.forget(device.address)
        for client in self.clients:
            late_s = _HEARD_S * self.world.random.random()
            if not self.is_cut(device.process, client.process):
                client.process.do(late_s, 0.0, client.ended, device.address, cause)
        self._notice()

    def stop(self, process: Process, for_s: float) -> None:
        """Stop a process for a while."""
        self.world.note(f"{process.name} stops for {for_s:.3f} s")
        process.stopped_until_s = max(process.stopped_until_s, self.world.now + for_s)
        self._silences(for_s)

    def end_client(self, client: KeptClient) -> None:
        """End a client's process; devices let go of what it has there once its lease is over."""
        self.world.note(f"{client.process.name} crashes")
        client.process.is_alive = False
        self.network.forget(client.address)
        self.clients.remove(client)
        self.world.after(self.lease_s + self.timeout_s, self._end_lease, client)

    def _end_lease(self, client: KeptClient) -> None:
        for device in self.devices.values():
            device.process.do(0.0, 0.0, device.loop.client_gone, client.address)

    def cut(self, sender: str, receiver: str, for_s: float) -> None:
        """Have nothing come from one node to another for a while."""
        if sender != receiver:
            self.world.note(f"{sender} > {receiver} is cut for {for_s:.3f} s")
            until_s = self.world.now + for_s
            self._cuts[sender, receiver] = max(self._cuts.get((sender, receiver), 0.0), until_s)
            self._silences(for_s)

    def is_cut(self, sender: Process, receiver: Process) -> bool:
        """Whether nothing comes through."""
        return self.cut_s(sender, receiver) > 0.0

    def cut_s(self, sender: Process, receiver: Process) -> float:
        """Return for how long nothing comes through."""
        return max(0.0, self._cuts.get((sender.node, receiver.node), 0.0) - self.world.now)

    def publish(self, device: PlayedDevice) -> None:
        """Have clients hear, with the keeper's beats, that it has started a device anew."""
        for client in self.clients:
            assert self.keeper is not None
            late_s = _BEAT_S + self.cut_s(self.keeper.process, client.process)
            client.process.do(late_s, 0.0, client.published, device)

    def is_heard(self, sender: Process, receiver: Process) -> bool:
        """Whether one process hears another."""
        return sender.is_alive and not sender.is_stopped and not self.is_cut(sender, receiver)

    def _silences(self, for_s: float) -> None:
        """See to it that a silence that begins now is noticed, and its end."""
        self._notice()
        if for_s >= self.lease_s:
            self.world.after(self.lease_s + self.timeout_s, self._end_leases)
        self.world.after(for_s + 1e-6, self._notice)

    def _notice(self) -> None:
        """Have clients see which devices are heard now."""
        for client in self.clients:
            if not client.process.is_stopped:
                client.process.do(_BEAT_S * self.world.random.random(), 0.0, client.look)

    def _end_leases(self) -> None:
        """Have devices let go of what clients have that they have not heard for long."""
        for device in self.devices.values():
            for client in self.clients:
                if device.process.is_alive and not self.is_heard(client.process, device.process):
                    self.world.note(f"{device.name} gives {client.process.name} up")
                    self.given_up.add((device.address, client.address))
                    device.process.do(0.0, 0.0, device.loop.client_gone, client.address)

    def _lost(self, sender: Process, receiver: Process) -> None:
        """Have clients hear, with a beat to come, that a message was lost."""
        ends = {sender.name, receiver.name}
        addresses = [d.address for d in self.devices.values() if d.process.name in ends]
        late_s = _BEAT_S * (1 + self.world.random.random())
        healed_s = self.cut_s(sender, receiver)
        for client in self.clients:
            if client.process.name in ends or len(addresses) == 2:
                for address in addresses:
                    client.process.do(healed_s + late_s, 0.0, client.lost, address)
