"""Several server processes on one port: a killed one is replaced, and a signal ends all."""

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
from pathlib import Path

import pytest

from tests.support.serving import plus_one, tensor

pytest.importorskip("uvicorn")
PATIENCE_S = 120


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


def wait_for(server: subprocess.Popen[str], port: int) -> None:
    """Wait until a worker answers, while the server runs."""
    while not answers(port):
        assert server.poll() is None
        time.sleep(0.1)


@pytest.mark.slow
def test_killed_worker_is_replaced(tmp_path: Path) -> None:
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
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(match[1]), 0)
