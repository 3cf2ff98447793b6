"""Hosts of a network that exists only here: network namespaces on a bridge, each with one link.

A host has a ``/tmp`` and a ``/dev/shm`` of its own. All is in namespaces, the bridge too, whose
names hold their owner's process: what a killed run left behind is swept by the next one.
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
#: What a process of a host sees is mounted in a mount namespace that `ip netns exec` makes.
_START = 'mount --bind "$1/tmp" /tmp; mount --bind "$1/shm" /dev/shm; shift; exec "$@"'


class Network:
    """Hosts ``1``, ``2``, ... at 10.77.0.1, 10.77.0.2, ...; whoever knows its name may use it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"10.77.0.{host}"

    def folder(self) -> Path:
        """Return the folder of the hosts' files, which goes with the network."""
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

    def cut(self, host: int) -> None:
        """Take a host's link off the bridge: what is sent is lost, and nobody is told."""
        _ip("-n", self._space("switch"), "link", "set", f"port{host}", "nomaster")

    def heal(self, host: int) -> None:
        """Put it back."""
        _ip("-n", self._space("switch"), "link", "set", f"port{host}", "master", "bridge")

    def spoil(self, host: int, share: float, delay_s: float) -> None:
        """Have a host's link lose a share of what goes by it, and delay the rest."""
        here, there = f"here{host}", f"there{host}"
        switch = ("-n", self._space("switch"), "link")
        _ip(*switch, "add", here, "type", "veth", "peer", "name", there)
        for device in (here, there):
            _ip(*switch, "set", device, "up")
        self.cut(host)
        _ip(*switch, "set", there, "master", "bridge")
        relay = [sys.executable, "-m", "tests.hosts.lossy", f"port{host}", here]
        subprocess.Popen(
            ["ip", "netns", "exec", self._space("switch"), *relay, str(share), str(delay_s)],
            start_new_session=True,
            stdout=subprocess.DEVNULL,  # else whoever reads its starter's waits for it
            stderr=subprocess.DEVNULL,
        )

    def deafen(self, host: int) -> None:
        """Lose all that reaches a host, and nothing that it sends."""
        rules = ("-n", self._space(host), "rule")
        _ip(*rules, "add", "pref", "5", "iif", "eth0", "blackhole")
        _ip(*rules, "add", "pref", "9", "lookup", "local")
        _ip(*rules, "del", "pref", "0")  # what is for the host itself comes first no longer

    def mute(self, host: int) -> None:
        """Lose all that a host sends to others, and nothing that reaches it."""
        _ip("-n", self._space(host), "rule", "add", "pref", "5", "iif", "lo", "blackhole")

    def restore(self, host: int) -> None:
        """Undo `deafen` or `mute`."""
        _ip("-n", self._space(host), "rule", "del", "pref", "5")

    def signal(self, host: int | str, number: int) -> bool:
        """Send a signal to every process on a host; whether there are any."""
        pids = _ip("netns", "pids", self._space(host)).split()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)
        return bool(pids)

    def kill(self, host: int) -> None:
        """Take a host's power: it says nothing more to anybody."""
        self.cut(host)
        self._end_processes(host)

    def open(self) -> None:
        """Make the switch."""
        self.folder().mkdir()
        space = self._space("switch")
        _ip("netns", "add", space)
        _ip("-n", space, "link", "add", "bridge", "type", "bridge")
        _ip("-n", space, "link", "set", "bridge", "up")

    def close(self) -> None:
        """End every process on the hosts, and the hosts; again is harmless."""
        for space in _spaces():
            if space.startswith(f"{self.name}-"):
                self._end_processes(space.removeprefix(f"{self.name}-"))
                _ip("netns", "delete", space)
        shutil.rmtree(self.folder(), ignore_errors=True)

    def _end_processes(self, host: int | str) -> None:
        while self.signal(host, signal.SIGKILL):
            time.sleep(0.05)  # they may have started others meanwhile

    def _space(self, what: int | str) -> str:
        return f"{self.name}-{what}"


@contextmanager
def network() -> Iterator[Network]:
    """Make a network, and leave nothing of it whatever happens."""
    sweep()
    found = Network(f"{_PREFIX}-{os.getpid()}-{_started(os.getpid())}")
    try:
        found.open()
        yield found
    finally:
        found.close()


def sweep() -> None:
    """Close the networks of processes that are gone."""
    names = [*_spaces(), *(path.name for path in _FILES.glob(f"{_PREFIX}-*-*"))]
    for name in {"-".join(name.split("-")[:3]) for name in names if name.startswith(_PREFIX)}:
        _, owner, started = name.split("-")
        if _started(int(owner)) != started:
            Network(name).close()


def why_not() -> str | None:
    """Return why there can be no such network here, if so."""
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


def _started(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; empty if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _spaces() -> list[str]:
    lines = _ip("netns", "list").splitlines()
    return [line.split()[0] for line in lines if line]


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    return done.stdout
