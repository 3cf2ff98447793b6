"""Runs the command line in this process, as a shell would see it."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from hetero.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it printed, as JSON: nothing else may be on stdout."""
        return json.loads(self.out)


class Shell:
    """``shell("run model.onnx", ...)``: more arguments are taken as they are."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, line: str, *more: object, ray: bool = False) -> Ended:
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
        return Ended(code, out, err)
