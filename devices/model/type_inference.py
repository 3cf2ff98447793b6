"""ONNX's type and shape inference, in a process of its own.

The native code behind it trusts what it is given: a slice's step of 2**31 - 1, a negative
`batch_dims` or a vector of 2**31 elements ends or stalls the process that asks. A model's file must
not do that to the user's process, nor to an actor.
"""

from __future__ import annotations

import atexit
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import onnx
from onnx import onnx_cpp2py_export

from devices.errors import ModelError
from devices.model import inference_worker

_COMMAND: Final = (
    sys.executable, "-I", "-S",
    str(Path(inference_worker.__file__)), str(Path(onnx_cpp2py_export.__file__)),
)  # fmt: skip


def infer_types(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return the main graph with the types that ONNX infers.

    Weights may be declared to be elsewhere. Where propagating known values through the graph is
    more than the native code can do, types are inferred without. ModelError if types and shapes
    contradict each other, or are such that ONNX's own inference crashes or does not come to an end.
    """
    data = model.SerializeToString()
    for data_prop in (True, False):
        if (answer := _WORKER.ask(data, data_prop)) is not None:
            failed, found = answer
            if failed:
                raise ModelError(
                    f"model {model.graph.name!r}: its shapes and types contradict each other: "
                    f"{found.decode(errors='replace')}. Export it again, or run onnx.checker on it."
                )
            typed = onnx.ModelProto()
            typed.ParseFromString(found)
            return typed.graph
    raise ModelError(
        f"model {model.graph.name!r}: onnx {onnx.__version__} fails when it infers the shapes "
        "of this model: some attribute or shape is far out of range. Run onnx.checker on the "
        "model, and export it again."
    )


class _Worker:
    """The other process: started when first needed, and again where it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._end)

    def ask(self, model: bytes, data_prop: bool) -> tuple[bool, bytes] | None:
        """Return whether it failed, and the typed model or why not; None if the process ended."""
        with self._lock:
            process = self._process = self._process or self._started()
            try:
                answer = _exchange(process, struct.pack("<Q?", len(model), data_prop) + model)
            except BaseException:  # an answer that comes later is not the next model's
                process.kill()
                self._end()
                raise
            if answer is None:
                self._end()
        return answer

    @staticmethod
    def _started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where native code says why it ends
            start_new_session=True,  # Ctrl-C is for the user's process alone
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def _forget(self) -> None:
        """Leave the process to the parent, after a fork."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.returncode = 0  # as far as this process is concerned
            self._process = None


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> tuple[bool, bytes] | None:
    """Send a request; return whether it failed and the answer, None where the process ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
    except BrokenPipeError:
        return None
    head = process.stdout.read(9)
    if len(head) < 9:
        return None
    failed, nbytes = struct.unpack("<?Q", head)
    answer = process.stdout.read(nbytes)
    return (failed, answer) if len(answer) == nbytes else None


_WORKER: Final = _Worker()
