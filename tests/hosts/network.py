"""A network of simulated hosts: network namespaces, each with one link to a bridge.

Each host has its own ``/tmp`` and ``/dev/shm``. The names of the namespaces contain the id of their
owner's process, so that a run removes the namespaces of earlier, killed runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PREFIX = "hosts"
_FILES = Path("/run")
#: Mounts a host's folders in the mount namespace that `ip netns exec` creates.
_START = 'mount --bind "$1/tmp" /tmp; mount --bind "$1/shm" /dev/shm; shift; exec "$@"'


class Network:
    """Hosts ``1``, ``2``, ... at 10.77.0.1, 10.77.0.2, ...; other processes use it by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"10.77.0.{host}"

    def folder(self) -> Path:
        """Return the folder of the hosts' files, which `close` deletes."""
        return _FILES / self.name

    def add(self, host: int) -> None:
        """Add a host to the switch."""
        for folder in ("tmp", "shm"):
            (self.folder() / str(host) / folder).mkdir(parents=True)
        space, port = self._space(host), f"port{host}"
        _ip("netns", "add", space)
        switch = ("-n", self._space("switch"), "link")
        _ip(*switch, "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip(*switch, "set", port, "master", "bridge", "up")
        _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")

    def start(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process on a host."""
        files = str(self.folder() / str(host))
        return subprocess.Popen(
            ["ip", "netns", "exec", self._space(host), "sh", "-ec", _START, "sh", files, *command],
            text=True,
            start_new_session=True,
            **options,
        )

    def disconnect(self, host: int) -> None:
        """Remove a host's link from the bridge; frames are lost without an error."""
        _ip("-n", self._space("switch"), "link", "set", f"port{host}", "nomaster")

    def reconnect(self, host: int) -> None:
        """Undo `disconnect`."""
        _ip("-n", self._space("switch"), "link", "set", f"port{host}", "master", "bridge")

    def impair(self, host: int, loss_rate: float, delay_s: float) -> None:
        """Make a host's link lose a share of its frames, and delay the others."""
        outer, inner = f"here{host}", f"there{host}"
        switch = ("-n", self._space("switch"), "link")
        _ip(*switch, "add", outer, "type", "veth", "peer", "name", inner)
        for device in (outer, inner):
            _ip(*switch, "set", device, "up")
        self.disconnect(host)
        _ip(*switch, "set", inner, "master", "bridge")
        relay = [sys.executable, "-m", "tests.hosts.lossy", f"port{host}", outer]
        subprocess.Popen(
            ["ip", "netns", "exec", self._space("switch"), *relay, str(loss_rate), str(delay_s)],
            start_new_session=True,
            stdout=subprocess.DEVNULL,  # a reader of the starter's output must not wait for it
            stderr=subprocess.DEVNULL,
        )

    def drop_incoming(self, host: int) -> None:
        """Drop all frames that a host receives."""
        rules = ("-n", self._space(host), "rule")
        _ip(*rules, "add", "pref", "5", "iif", "eth0", "blackhole")
        _ip(*rules, "add", "pref", "9", "lookup", "local")
        _ip(*rules, "del", "pref", "0")  # local addresses lose their precedence

    def drop_outgoing(self, host: int) -> None:
        """Drop all frames that a host sends to others."""
        _ip("-n", self._space(host), "rule", "add", "pref", "5", "iif", "lo", "blackhole")

    def restore_traffic(self, host: int) -> None:
        """Undo `drop_incoming` or `drop_outgoing`."""
        _ip("-n", self._space(host), "rule", "del", "pref", "5")

    def signal(self, host: int | str, number: int) -> bool:
        """Send a signal to every process on a host; return whether the host has any."""
        pids = _ip("netns", "pids", self._space(host)).split()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)
        return bool(pids)

    def power_off(self, host: int) -> None:
        """Disconnect a host and kill its processes, like a loss of power."""
        self.disconnect(host)
        self._end_processes(host)

    def open(self) -> None:
        """Create the switch."""
        self.folder().mkdir()
        space = self._space("switch")
        _ip("netns", "add", space)
        _ip("-n", space, "link", "add", "bridge", "type", "bridge")
        _ip("-n", space, "link", "set", "bridge", "up")

    def close(self) -> None:
        """Kill all processes on the hosts and delete the hosts; idempotent."""
        for space in _spaces():
            if space.startswith(f"{self.name}-"):
                self._end_processes(space.removeprefix(f"{self.name}-"))
                _ip("netns", "delete", space)
        shutil.rmtree(self.folder(), ignore_errors=True)

    def _end_processes(self, host: int | str) -> None:
        while self.signal(host, signal.SIGKILL):
            time.sleep(0.05)  # they may have started others

    def _space(self, name: int | str) -> str:
        return f"{self.name}-{name}"


@contextmanager
def network() -> Iterator[Network]:
    """Create a network, and delete it at the end, also after an exception."""
    sweep()
    net = Network(f"{_PREFIX}-{os.getpid()}-{_start_ticks(os.getpid())}")
    try:
        net.open()
        yield net
    finally:
        net.close()


def sweep() -> None:
    """Delete the networks of processes that no longer exist."""
    names = [*_spaces(), *(path.name for path in _FILES.glob(f"{_PREFIX}-*-*"))]
    for name in {"-".join(name.split("-")[:3]) for name in names if name.startswith(_PREFIX)}:
        _, owner, start_ticks = name.split("-")
        if _start_ticks(int(owner)) != start_ticks:
            Network(name).close()


def reason_unavailable() -> str | None:
    """Return the reason why this machine cannot simulate a network; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    for path in (Path(sys.prefix), Path(__file__)):
        if path.is_relative_to("/tmp"):
            return f"hosts have a /tmp of their own, and {path} is in it"
    try:
        with network() as trial:
            trial.add(1)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return None


def _start_ticks(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if it does not exist."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _spaces() -> list[str]:
    lines = _ip("netns", "list").splitlines()
    return [line.split()[0] for line in lines if line]


def _ip(*arguments: str) -> str:
    process = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    return process.stdout
