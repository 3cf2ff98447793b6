"""Several server processes on the same ports; the kernel distributes connections among them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from hetero.apps.serve.worker_link import (
    CallResult,
    Listen,
    Loaded,
    Message,
    SharedCall,
    receive,
    send,
)
from hetero.devices.errors import ArgumentError, ClusterError
from hetero.scheduler.processes.owned_files import Process, process_start

#: Seconds within which a worker that ends has failed to start.
_START_S: Final = 10.0
#: Successive failures to start after which the server ends.
_MAX_FAILURES: Final = 3
#: Seconds between two checks of the workers.
_CHECK_S: Final = 0.2
#: Seconds without a sign of life after which a worker is replaced.
SILENT_S: Final = 10.0
#: Calls that wait for earlier ones.
_MAX_CALLS: Final = 256


def bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """Return a socket bound to a port, 0 for a free one; it does not listen yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise ArgumentError(
            f"cannot serve at {host}:{port}: {error}. Pass another port; 0 takes a free one."
        ) from error
    return bound


@dataclass(eq=False)
class _Worker:
    """A worker process, and the parent's end of its link."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    start_s: float = field(default_factory=time.monotonic)
    #: Time of its last message.
    heard_s: float = field(default_factory=time.monotonic)
    listens: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether it is stopped, or its event loop hangs."""
        if time.monotonic() - self.heard_s < SILENT_S:
            return False
        number = self.process.pid
        # Loading models may take minutes, in which there are no signs of life.
        return self.listens or Process(number, process_start(number)).is_stopped


class _QueuedCall(NamedTuple):
    """A call that all workers are to carry out, and the worker that received it."""

    sender: _Worker
    call: SharedCall


class Workers:
    """Worker processes that are replaced if they end, are stopped or hang.

    A call that changes a worker is carried out by all, in one order, and by each new one before it
    listens.

    `command`: the command of a worker; the descriptor of its link is appended.
    `on_change`: called with the ids of the processes when they have changed.
    """

    def __init__(
        self, command: Sequence[str], count: int, on_change: Callable[[list[int]], None]
    ) -> None:
        self._command, self._count, self._on_change = list(command), count, on_change
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._num_failures = 0
        #: Calls by the kind and name of the changed object; new workers carry them out.
        self._history: dict[tuple[str, Any], SharedCall] = {}
        self._calls: deque[_QueuedCall] = deque()
        #: The result so far of the first call, and the workers that still carry it out.
        self._result: CallResult | None = None
        self._pending: set[_Worker] = set()
        self._num_calls = 0

    def step(self, timeout_s: float) -> None:
        """Read messages for a while, then replace workers.

        Raises ClusterError: workers fail to start.
        """
        for key, _ in self._selector.select(timeout_s):
            self._read(key.data)
        for worker in [worker for worker in self._workers if worker.is_silent]:
            worker.process.kill()
            worker.process.wait()
        for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
            has_failed = time.monotonic() - worker.start_s < _START_S
            self._num_failures = self._num_failures + 1 if has_failed else 0
            self._remove(worker)
        if self._num_failures >= _MAX_FAILURES:
            raise ClusterError(
                f"workers of the server fail to start: {self._num_failures} ended within "
                f"{_START_S:g} s."
            )
        if missing := range(self._count - len(self._workers)):
            self._workers += [self._start() for _ in missing]
            self._on_change([worker.process.pid for worker in self._workers])
        self._advance()

    def close(self, drain_s: float) -> None:
        """End the workers; those that take longer than `drain_s` for their requests are killed."""
        for worker in self._workers:
            worker.process.terminate()
        deadline_s = time.monotonic() + drain_s + 10
        for worker in self._workers:
            try:
                worker.process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        for worker in [*self._workers]:
            self._remove(worker)
        self._selector.close()

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            descriptor = theirs.fileno()
            process = subprocess.Popen([*self._command, f"{descriptor}"], pass_fds=[descriptor])
        worker = _Worker(process, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._pending.discard(worker)
        self._selector.unregister(worker.link)
        worker.link.close()

    def _read(self, worker: _Worker) -> None:
        try:
            message = receive(worker.link)
        except (OSError, msgspec.MsgspecError):
            message = None
        if message is None:  # it has ended, or is about to
            worker.process.kill()
            worker.process.wait()
            return
        worker.heard_s = time.monotonic()
        if isinstance(message, Loaded):
            for call in [*self._history.values(), *self._running_call()]:
                self._send(worker, call)
            self._send(worker, Listen())
            worker.listens = True
        elif isinstance(message, SharedCall):
            if len(self._calls) < _MAX_CALLS:
                self._calls.append(_QueuedCall(worker, message))
            else:
                text = f"{_MAX_CALLS} calls are waiting; try again later."
                self._send(worker, CallResult(message.number, 503, text))
        elif isinstance(message, CallResult) and message.number == self._num_calls:
            self._pending.discard(worker)
            if message.status != 200:
                self._result = message

    def _send(self, worker: _Worker, message: Message) -> None:
        """Send a message to a worker; one that does not read is replaced later."""
        with contextlib.suppress(OSError):
            send(worker.link, message)

    def _running_call(self) -> list[SharedCall]:
        return [self._calls[0].call] if self._result is not None else []

    def _advance(self) -> None:
        """End the running call if all workers have carried it out, and begin the next."""
        if self._result is not None and not self._pending:
            sender, call = self._calls.popleft()
            result, self._result = self._result, None
            if result.status == 200:
                self._remember(call)
            if sender in self._workers:
                self._send(sender, CallResult(call.number, result.status, result.message))
        if self._result is None and self._calls:
            call = self._calls[0].call
            self._num_calls += 1
            self._result = CallResult(self._num_calls)
            self._pending = {worker for worker in self._workers if worker.listens}
            for worker in self._pending:
                self._send(worker, SharedCall(self._num_calls, call.name, call.fields))

    def _remember(self, call: SharedCall) -> None:
        """Keep a call for new workers if it changes their behaviour after their start."""
        name = call.fields.get("name") or call.fields.get("model_name") or ""
        if call.name == "RepositoryModelUnload":
            self._history["model", name] = call
        elif call.name == "RepositoryModelLoad":
            self._history.pop(("model", name), None)
        elif call.name == "SystemSharedMemoryRegister":
            self._history["region", name] = call
        elif call.name == "SystemSharedMemoryUnregister":
            for key in [key for key in self._history if key[0] == "region"]:
                if name in ("", key[1]):
                    del self._history[key]


def run_workers(
    command: Sequence[str], count: int, drain_s: float, on_change: Callable[[list[int]], None]
) -> None:
    """Run worker processes until interrupted; `Workers` has the arguments."""
    workers = Workers(command, count, on_change)
    try:
        while True:
            workers.step(_CHECK_S)
    finally:
        workers.close(drain_s)
