"""The arrows between packages, and the one place where each vendor runtime may be imported."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
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
#: Folder or file -> what beside it, in its package, it must not import.
INNER = {
    "devices/errors.py": {
        "request",
        "kernels",
        "cpu",
        "interpreter",
        "transforms",
        "ort",
        "openvino",
        "gpu",
        "null",
        "conformance",
    },
    "devices/model": {
        "plugin",
        "request",
        "kernels",
        "cpu",
        "interpreter",
        "transforms",
        "ort",
        "openvino",
        "gpu",
        "null",
        "conformance",
    },
    "devices/plugin": {
        "kernels",
        "interpreter",
        "transforms",
        "cpu",
        "ort",
        "openvino",
        "gpu",
        "null",
        "conformance",
    },
    "devices/request": {
        "plugin.plugin",
        "plugin.operator_plugin",
        "plugin.registry",
        "kernels",
        "cpu",
        "interpreter",
        "transforms",
        "ort",
        "null",
        "conformance",
    },
    "devices/kernels": {
        "model",
        "plugin",
        "request",
        "cpu",
        "interpreter",
        "transforms",
        "ort",
        "openvino",
        "gpu",
        "null",
        "conformance",
    },
    "devices/interpreter": {
        "transforms",
        "cpu",
        "request",
        "ort",
        "openvino",
        "gpu",
        "null",
        "conformance",
    },
    "devices/transforms": {"cpu", "request", "ort", "openvino", "gpu", "null", "conformance"},
    "devices/cpu": {"request", "ort", "openvino", "gpu", "null", "conformance"},
    "devices/ort": {
        "request",
        "kernels",
        "interpreter",
        "transforms",
        "cpu",
        "openvino.runtime",
        "null",
        "conformance",
    },
    "devices/openvino": {
        "request",
        "kernels",
        "interpreter",
        "transforms",
        "cpu",
        "ort",
        "null",
        "conformance",
    },
    "devices/gpu": {"cpu", "request", "ort", "openvino", "null", "conformance"},
    "devices/null": {
        "request",
        "kernels",
        "interpreter",
        "transforms",
        "cpu",
        "ort",
        "conformance",
    },
    "devices/conformance": {
        "kernels",
        "interpreter",
        "transforms",
        "cpu",
        "ort",
        "openvino",
        "null",
    },
    "scheduler/vocabulary": {
        "formats",
        "processes",
        "channels",
        "client",
        "device",
        "observe",
        "executor",
        "inprocess",
        "ray",
        "universe",
    },
    "scheduler/processes": {
        "channels",
        "client",
        "device",
        "observe",
        "executor",
        "inprocess",
        "ray",
        "universe",
    },
    "scheduler/formats": {
        "channels",
        "client",
        "device",
        "observe",
        "executor",
        "inprocess",
        "ray",
        "universe",
    },
    "scheduler/channels": {
        "client",
        "device",
        "observe",
        "executor",
        "inprocess",
        "ray",
        "universe",
    },
    "scheduler/observe": {
        "channels",
        "client",
        "device",
        "executor",
        "inprocess",
        "ray",
        "universe",
    },
    "scheduler/client": {"device", "inprocess", "ray", "universe"},
    "scheduler/device": {"client", "observe", "executor", "inprocess", "ray", "universe"},
    "scheduler/ray": {"inprocess", "universe"},
    "scheduler/universe": {"inprocess", "ray"},
    "scheduler/executor.py": {"device", "inprocess", "ray"},
}
#: Files that may have more than 500 lines.
LONGER = {"hetero/core.py": 640}
#: Folder of hetero -> the folders and modules beside it that it may import.
HETERO: dict[str, set[str]] = {
    "affinity": set(),
    "batching": set(),
    "generate": set(),
    "observe": set(),
    "preprocess": set(),
    "partition": {"affinity"},
    "properties": {"affinity", "version"},
    "query": {"affinity", "properties"},
    "planning": {"affinity", "generate", "observe", "partition", "properties", "query"},
    "cache": {"affinity", "partition", "properties", "version"},
    "compile": {
        "affinity",
        "batching",
        "cache",
        "generate",
        "partition",
        "planning",
        "properties",
        "query",
    },
    "compare": {"affinity", "compile", "core", "properties"},
    "report": {"affinity", "compile", "observe", "partition", "planning", "query"},
    "examples": set(),
    "simulate": {"observe", "planning", "query"},
    "serve": {"compile", "generate", "observe", "version"},
}
#: Library -> where it may be imported: glob patterns of paths.
RESERVED = {
    "ray": ["scheduler/ray/*.py"],
    "zmq": ["scheduler/channels/*.py"],
    "onnxruntime": ["devices/ort/*.py"],
    "openvino": ["devices/openvino/*.py"],
    "cupy": ["devices/gpu/*.py"],
    "scipy": ["hetero/planning/*/*.py"],
    "click": ["hetero/cli/*.py"],
    "PIL": ["hetero/cli/pictures.py"],
    "tokenizers": ["hetero/generate/text.py"],
    "prometheus_client": [
        *(
            "scheduler/observe/metrics.py",
            "hetero/observe/exposition.py",
            "hetero/serve/metrics.py",
        ),
    ],
    "uvicorn": ["hetero/serve/*.py"],
    "httptools": ["hetero/serve/*.py"],
    "orjson": ["hetero/serve/*.py"],
    "grpc": ["hetero/serve/*.py"],
    "jinja2": ["hetero/serve/texts.py"],
}


@cache
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Return what a file imports, wherever in it: (module, level)."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", node.level))
    return tuple(found)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def neighbours(path: Path) -> set[str]:
    """Return the folders and modules of its own package that a file imports."""
    package, *_ = path.relative_to(ROOT).parts
    names = [module.split(".") for module, _ in imports(path)]
    inside = [name for name in names if name[0] == package and len(name) > 1]
    return {".".join(name[1:end]) for name in inside for end in (2, 3)}


@pytest.mark.parametrize("place", INNER)
def test_a_folder_keeps_the_arrows_inside_its_package(place: str) -> None:
    paths = [p for p in SOURCES if f"{relative(p)}/".startswith(f"{place}/")]
    assert paths
    wrong = {relative(p): both for p in paths if (both := neighbours(p) & INNER[place])}
    assert wrong == {}


@pytest.mark.parametrize("folder", HETERO)
def test_a_folder_of_hetero_imports_what_it_may(folder: str) -> None:
    paths = [p for p in SOURCES if relative(p).startswith(f"hetero/{folder}/")]
    wrong = {
        relative(p): more
        for p in paths
        if (more := {name for name in neighbours(p) if "." not in name} - HETERO[folder] - {folder})
    }
    assert wrong == {}


def test_every_folder_is_listed() -> None:
    folders = {relative(p.parent) for p in SOURCES if len(p.relative_to(ROOT).parts) == 3}
    listed = {*INNER, *(f"hetero/{name}" for name in HETERO), "hetero/cli"}
    assert folders - listed == set()


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = {relative(p).removesuffix(".py").replace("/", "."): p for p in SOURCES}
    graph = {
        name: {module for module, _ in imports(path) if module in modules}
        for name, path in modules.items()
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_no_test_imports_another() -> None:
    wrong = {
        relative(path): found.group()
        for path in (ROOT / "tests").rglob("*.py")
        if (found := re.search(r"^ *(from|import) tests[.\w]*\.test_\w+", path.read_text(), re.M))
    }
    assert wrong == {}


def test_nothing_imports_the_command_line() -> None:
    paths = [p for p in SOURCES if not relative(p).startswith(("hetero/cli/", "hetero/__main__"))]
    assert [relative(p) for p in paths if "cli" in neighbours(p)] == []


def test_a_file_keeps_the_layers() -> None:
    for path in SOURCES:
        name = relative(path)
        package = name.partition("/")[0]
        for module, level in imports(path):
            top = module.partition(".")[0]
            assert level == 0, f"{name}: relative import of {module!r}"
            assert top not in FORBIDDEN[package], f"{name}: {package} must not import {module}"
            allowed = RESERVED.get(top)
            assert allowed is None or any(fnmatch(name, p) for p in allowed), (
                f"{name}: {module} is for {allowed}"
            )


@pytest.mark.parametrize(
    "machine", ["client/machine", "device/machine", "vocabulary/events", "vocabulary/plan"]
)
def test_machines_are_pure(machine: str) -> None:
    found = {
        module.partition(".")[0] for module, _ in imports(ROOT / "scheduler" / f"{machine}.py")
    }
    assert not found & {"time", "threading", "asyncio", "queue", "random", "concurrent", "ray"}


def test_files_stay_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    # Core is a face: most of it is what its users read.
    assert {n: length for n, length in lengths.items() if length > LONGER.get(n, 500)} == {}
