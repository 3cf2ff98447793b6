"""Immediate end of a process with Python's exit handlers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from hetero.scheduler.processes.owned_files import Process, owned_name, process_start, sweep

PROGRAM = """
import atexit, sys
from hetero.scheduler.processes.process_end import run_and_exit

class Last:
    def __del__(self):
        print("taken apart")

sys.last = Last()
atexit.register(print, "handled")

def program():
    print("done")
    sys.exit(3)

run_and_exit(program)
"""
COMMAND = [sys.executable, "-c", PROGRAM]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_exit_handlers_run_and_output_is_complete():
    result = subprocess.run(COMMAND, env=BUFFERED, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (3, "done\nhandled\n")


def test_closed_reader_causes_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        COMMAND, env=BUFFERED, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (3, b"")


def test_uninspectable_process_counts_as_alive(monkeypatch, tmp_path):
    me = Process(os.getpid(), process_start(os.getpid()))
    mine = tmp_path / owned_name("file")
    mine.touch()

    def refuse(path: Path, *arguments: object, **options: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(Path, "read_text", refuse)
        assert not me.is_gone
        sweep(tmp_path)
    assert mine.exists()
    assert Process(os.getpid(), "0").is_gone
