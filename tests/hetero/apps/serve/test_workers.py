"""Server processes on one port: they are replaced, carry out the same calls, and end together."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import plus_one, tensor

pytest.importorskip("uvicorn")
from hetero.apps.serve import workers as workers_module
from hetero.apps.serve.workers import Workers

PATIENCE_S = 120
#: A worker that writes the calls that it carries out; it hangs if a file asks for it.
WORKER = """
import asyncio, os, sys, time
from pathlib import Path
from hetero.apps.serve.worker_link import WorkerLink
from hetero.apps.serve.errors import protocol_error

def carry_out(name, fields):
    if fields.get("name") == "missing":
        raise protocol_error("no such model", 404)
    with (folder / f"{os.getpid()}").open("a") as file:
        file.write(f"{name} {fields.get('name', '')}\\n")

async def work(link):
    running = asyncio.ensure_future(link.run(carry_out))
    while True:
        if (folder / f"{os.getpid()}.hang").exists():
            time.sleep(1000)
        for path in folder.glob(f"{os.getpid()}.call.*"):
            name, _, model = path.read_text().partition(" ")
            path.unlink()
            try:
                await link.call_all(name, {"name": model})
                result = "done"
            except Exception as error:
                result = str(error)
            (folder / f"{os.getpid()}.result").write_text(result)
        await asyncio.sleep(0.01)

folder = Path(sys.argv[1])
link = WorkerLink(int(sys.argv[2]))
link.catch_up(carry_out)
(folder / f"{os.getpid()}").touch()
asyncio.run(work(link))
"""
PARENT = """
import sys
from hetero.apps.serve.workers import run_workers
run_workers(sys.argv[1:], 2, 0, lambda ids: print(*ids, flush=True))
"""


class Pool:
    """Workers, and the files through which a test calls them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: list[int] = []
        command = [sys.executable, "-c", WORKER, str(folder)]
        self.workers = Workers(command, 2, self._change)

    def _change(self, ids: list[int]) -> None:
        self.ids = ids

    def until(self, is_true: Callable[[], Any]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not is_true():
            assert time.monotonic() < until_s
            self.workers.step(0.02)

    def until_both_listen(self) -> None:
        self.until(lambda: all((self.folder / f"{number}").exists() for number in self.ids))

    def call(self, index: int, text: str) -> str:
        """Return the result of a call that a worker receives."""
        path = self.folder / f"{self.ids[index]}.result"
        path.unlink(missing_ok=True)
        partial = self.folder / "partial"
        partial.write_text(text)
        partial.rename(self.folder / f"{self.ids[index]}.call.{time.monotonic_ns()}")
        self.until(path.exists)
        return path.read_text()

    def calls(self, index: int) -> list[str]:
        """Return the calls that a worker has carried out."""
        return (self.folder / f"{self.ids[index]}").read_text().splitlines()


@contextmanager
def pool(folder: Path) -> Iterator[Pool]:
    pool = Pool(folder)
    try:
        pool.workers.step(0)
        pool.until_both_listen()
        yield pool
    finally:
        for number in pool.ids:
            os.kill(number, signal.SIGKILL)
        pool.workers.close(0)


def has_ended(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


@pytest.mark.slow
def test_call_reaches_all_workers_including_new_ones(tmp_path):
    with pool(tmp_path) as both:
        assert both.call(0, "RepositoryModelUnload a") == "done"
        assert both.call(1, "RepositoryModelUnload b") == "done"
        assert both.call(1, "RepositoryModelLoad b") == "done"
        assert both.call(0, "SystemSharedMemoryRegister r") == "done"
        assert both.call(0, "RepositoryModelUnload missing") == "no such model"
        unloads = ["RepositoryModelUnload a", "RepositoryModelUnload b"]
        expected = [*unloads, "RepositoryModelLoad b", "SystemSharedMemoryRegister r"]
        assert both.calls(0) == both.calls(1) == expected
        victim = both.ids[0]
        os.kill(victim, signal.SIGKILL)
        both.until(lambda: victim not in both.ids)
        both.until_both_listen()
        new = next(index for index in range(2) if len(both.calls(index)) == 2)
        assert both.calls(new) == ["RepositoryModelUnload a", "SystemSharedMemoryRegister r"]


@pytest.mark.parametrize("way", [pytest.param("stopped", marks=pytest.mark.slow), "hanging"])
def test_worker_without_signs_of_life_is_replaced(tmp_path, way, monkeypatch):
    with pool(tmp_path) as both:
        victim = both.ids[0]
        monkeypatch.setattr(workers_module, "SILENT_S", 3.0)
        if way == "stopped":
            os.kill(victim, signal.SIGSTOP)
        else:
            (tmp_path / f"{victim}.hang").touch()
        both.until(lambda: victim not in both.ids)
        monkeypatch.undo()
        both.until_both_listen()
        assert has_ended(victim)
        assert both.call(0, "RepositoryModelUnload a") == "done"


@pytest.mark.parametrize("is_stopped", [pytest.param(False, marks=pytest.mark.slow), True])
def test_workers_end_with_their_parent(tmp_path, is_stopped):
    command = [sys.executable, "-c", PARENT, sys.executable, "-c", WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ids = [int(number) for number in parent.stdout.readline().split()]
        until_s = time.monotonic() + PATIENCE_S
        while not all((tmp_path / f"{number}").exists() for number in ids):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        if is_stopped:
            os.kill(ids[0], signal.SIGSTOP)
        parent.kill()
        while not all(map(has_ended, ids)):
            assert time.monotonic() < until_s
            time.sleep(0.02)


def answers(port: int) -> bool:
    """Return whether the server answers an inference."""
    body = json.dumps({"inputs": [tensor("x", "FP32", [1.0])]})
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request("POST", "/v2/models/plus/infer", body)
        status = connection.getresponse().status
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    assert status == 200
    return True


def status(port: int, path: str, body: str = "") -> int:
    """Return the status of a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("POST" if body else "GET", path, body or None)
    number = connection.getresponse().status
    connection.close()
    return number


def wait_for(server: subprocess.Popen[str], port: int) -> None:
    """Wait until a worker answers, while the server runs."""
    while not answers(port):
        assert server.poll() is None
        time.sleep(0.1)


@pytest.mark.slow
def test_killed_worker_is_replaced(tmp_path):
    model = tmp_path / "plus.onnx"
    model.write_bytes(plus_one().SerializeToString())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "hetero",
        "serve",
        str(model),
        "-d",
        "CPU",
        "--executor",
        "inprocess",
        "--port",
        str(port),
        "--workers",
        "2",
        "--model-control",
        "explicit",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            line = ""
            while not (match := re.search(r"workers: \[(\d+), (\d+)\]", line)):
                line += server.stderr.readline()
            wait_for(server, port)
            victim = int(match[1])
            os.kill(victim, signal.SIGKILL)
            line = ""
            while not (match := re.search(r"workers: \[(\d+), (\d+)\]", line)):
                line += server.stderr.readline()
            assert victim not in map(int, match.groups())
            wait_for(server, port)
            assert status(port, "/v2/repository/models/plus/unload", "{}") == 200
            # Each new connection may reach another worker.
            assert {status(port, "/v2/models/plus") for _ in range(20)} == {404}
            assert status(port, "/v2/repository/models/plus/load", "{}") == 200
            assert {status(port, "/v2/models/plus") for _ in range(20)} == {200}
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(match[1]), 0)
