"""Runs `hetero` commands in this process and returns exit code, stdout and stderr."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from hetero.cli.main import main
from tests.support.models import branches

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on stdout; other text there is an error."""
        return json.loads(self.out)


class Shell:
    """Runs a command: ``shell("run model.onnx", path)``; further arguments are not split."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, line: str, *more: object, ray: bool = False) -> CommandResult:
        executor = [] if ray else ["--executor", "inprocess"]
        arguments = [*shlex.split(line), *executor, *map(str, more)]
        self._patch.setattr(sys, "argv", ["hetero", *arguments])
        self._capture.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = self._capture.readouterr()
        return CommandResult(code, out, err)


def start_endless_command(command: str, folder: Path, *more: object) -> subprocess.Popen[str]:
    """Start a command whose model never ends; return its process as soon as the model runs.

    `folder` receives the model and comes first in the module path of the process.
    """
    model = folder / "branches.onnx"
    onnx.save_model(branches(), model)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hetero",
            command,
            str(model),
            "--executor",
            "inprocess",
            "--plugin",
            "tests.support.endless_plugin:EndlessPlugin",
            "-d",
            "ENDLESS",
            *map(str, more),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "running\n"
    return process
