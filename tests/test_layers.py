"""The arrows between packages, and the one place where each vendor runtime may be imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path
    for package in ("devices", "scheduler", "hetero")
    for path in (ROOT / package).rglob("*.py")
)
#: Package -> packages of ours that it must not import.
FORBIDDEN = {"devices": {"scheduler", "hetero"}, "scheduler": {"hetero"}, "hetero": set()}
#: Library -> where it may be imported: glob patterns of paths.
RESERVED = {
    "ray": ["scheduler/ray/*.py"],
    "onnxruntime": ["devices/ort/*.py"],
    "openvino": ["devices/openvino/*.py"],
    "cupy": ["devices/gpu/*.py"],
    "scipy": ["hetero/planning/*/*.py"],
    "highspy": ["hetero/planning/solver/*.py"],
    "click": ["hetero/cli/*.py"],
}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield what a file imports, wherever in it: (module, level)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_file_keeps_the_layers(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for module, level in imports(path):
        top = module.partition(".")[0]
        assert level == 0, f"relative import of {module!r}"
        assert top not in FORBIDDEN[package], f"{package} must not import {module}"
        allowed = RESERVED.get(top)
        assert allowed is None or any(fnmatch(relative(path), p) for p in allowed), (
            f"{module} is for {allowed}"
        )


def test_kernels_take_their_array_namespace() -> None:
    wrong = [
        relative(path)
        for path in (ROOT / "devices" / "kernels").glob("*.py")
        if any(module.partition(".")[0] == "numpy" for module, _ in imports(path))
    ]
    assert wrong == []


@pytest.mark.parametrize("machine", ["client/machine", "device/machine", "events", "plan"])
def test_machines_are_pure(machine: str) -> None:
    found = {
        module.partition(".")[0] for module, _ in imports(ROOT / "scheduler" / f"{machine}.py")
    }
    assert not found & {"time", "threading", "asyncio", "queue", "random", "concurrent", "ray"}


def test_files_stay_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: n for name, n in lengths.items() if n > 500} == {}
