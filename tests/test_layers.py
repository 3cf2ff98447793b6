"""Import rules: layers of packages and folders, and the modules that may import a library."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
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
#: Folder at the top level -> prefixes of the project's modules that it may import.
ALLOWED = {
    "devices": ("hetero.devices",),
    "scheduler": ("hetero.devices", "hetero.scheduler"),
    "hetero": ("hetero",),
}
#: Folder or file -> neighbours in its package that it must not import.
FORBIDDEN_NEIGHBOURS = {
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
    "devices/faults": {
        "request",
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
        "openvino",
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
    "scheduler/types": {
        "formats",
        "processes",
        "channels",
        "client",
        "device",
        "observe",
        "executor",
        "inprocess",
        "ray",
        "simulation",
    },
    "scheduler/processes": {
        "channels",
        "client",
        "device",
        "observe",
        "executor",
        "inprocess",
        "ray",
        "simulation",
    },
    "scheduler/formats": {
        "channels",
        "client",
        "device",
        "observe",
        "executor",
        "inprocess",
        "ray",
        "simulation",
    },
    "scheduler/channels": {
        "client",
        "device",
        "observe",
        "executor",
        "inprocess",
        "ray",
        "simulation",
    },
    "scheduler/observe": {
        "channels",
        "client",
        "device",
        "executor",
        "inprocess",
        "ray",
        "simulation",
    },
    "scheduler/client": {"device", "inprocess", "ray", "simulation"},
    "scheduler/device": {"client", "observe", "executor", "inprocess", "ray", "simulation"},
    "scheduler/ray": {"inprocess", "simulation"},
    "scheduler/simulation": {"inprocess", "ray"},
    "scheduler/executor.py": {"device", "inprocess", "ray"},
}
#: Folder of hetero -> neighbouring folders and modules that it may import.
ALLOWED_NEIGHBOURS: dict[str, set[str]] = {
    "affinity": set(),
    "batching": set(),
    "observe": set(),
    "measure": set(),
    "partition": {"affinity"},
    "properties": {"affinity", "version"},
    "query": {"affinity", "properties"},
    "planning": {"affinity", "formatting", "measure", "partition", "properties", "query"},
    "cache": {"affinity", "partition", "properties", "version"},
    "compile": {
        "affinity",
        "batching",
        "cache",
        "formatting",
        "partition",
        "planning",
        "properties",
        "query",
        "verify",
    },
    "verify": {"cache", "formatting", "measure", "partition", "planning", "properties", "query"},
    "comparison": {"affinity", "compile", "core", "properties", "verify"},
    "report": {
        "affinity",
        "compile",
        "formatting",
        "measure",
        "partition",
        "planning",
        "query",
        "terminal_tables",
    },
    "examples": set(),
}
#: Folders on top of the core, which does not import them.
TOP_FOLDERS = {"hetero/apps", "hetero/cli", "hetero/faces"}
#: File -> application or face that it imports only inside a function.
LAZY_IMPORTS = {
    "hetero/compile/compiled_model.py": "hetero.apps.generate.generation",
    "hetero/core.py": "hetero.apps.simulate.simulate_model",
    "hetero/query/survey.py": "hetero.report.save",
    "hetero/cli/preprocessing_options.py": "hetero.faces.openvino.preprocess",
}
#: Modules that give a face its public name.
FACE_NAMES = ("backend.py", "onnxruntime.py", "openvino.py", "preprocess.py")
#: Library -> glob patterns of the files that may import it.
LIBRARY_USERS = {
    "ray": ["scheduler/ray/*.py"],
    "zmq": ["scheduler/channels/*.py"],
    "onnxruntime": ["devices/ort/*.py"],
    "openvino": ["devices/openvino/*.py"],
    "cupy": ["devices/gpu/*.py"],
    "scipy": ["hetero/planning/*/*.py"],
    "click": ["hetero/cli/*.py", "hetero/apps/*/command.py"],
    "PIL": ["hetero/cli/inputs.py"],
    "tokenizers": ["hetero/apps/generate/tokenizer.py"],
    "prometheus_client": [
        *(
            "scheduler/observe/metrics.py",
            "hetero/observe/metrics_server.py",
            "hetero/apps/serve/statistics.py",
        ),
    ],
    "opentelemetry": ["hetero/observe/spans.py"],
    "uvicorn": ["hetero/apps/serve/*.py"],
    "httptools": ["hetero/apps/serve/*.py"],
    "orjson": ["hetero/apps/serve/*.py"],
    "grpc": ["hetero/apps/serve/*.py"],
    "jinja2": ["hetero/apps/serve/tokenizer.py"],
    "yaml": ["devices/file_reader.py"],
}


@cache
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Return all imports of a file as (module, level), also those inside functions."""
    modules: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.append((node.module or "", node.level))
    return tuple(modules)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    name = relative(path).removesuffix(".py").replace("/", ".")
    return name if name.startswith("hetero.") else f"hetero.{name}"


def neighbours(path: Path) -> set[str]:
    """Return the folders and modules of its own top-level folder that a file imports."""
    package, *_ = path.relative_to(ROOT).parts
    prefix = "hetero." if package == "hetero" else f"hetero.{package}."
    names = [m.removeprefix(prefix).split(".") for m, _ in imports(path) if m.startswith(prefix)]
    own = [name for name in names if package != "hetero" or name[0] not in ALLOWED]
    return {".".join(name[:end]) for name in own for end in (1, 2)}


def modules_at_load(path: Path) -> set[str]:
    """Return the modules that a file imports at its top level."""
    statements = ast.parse(path.read_text()).body
    return {node.module or "" for node in statements if isinstance(node, ast.ImportFrom)} | {
        alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names
    }


def imports_at_load(path: Path) -> set[str]:
    """Return the modules that a file imports before any of its functions is called."""
    return {module for module, _ in imports(path)} - {LAZY_IMPORTS.get(relative(path))}


@pytest.mark.parametrize("folder", FORBIDDEN_NEIGHBOURS)
def test_folder_imports_no_forbidden_neighbour(folder):
    paths = [p for p in SOURCES if f"{relative(p)}/".startswith(f"{folder}/")]
    assert paths
    violations = {
        relative(p): forbidden
        for p in paths
        if (forbidden := neighbours(p) & FORBIDDEN_NEIGHBOURS[folder])
    }
    assert violations == {}


@pytest.mark.parametrize("folder", ALLOWED_NEIGHBOURS)
def test_hetero_folder_imports_only_listed_folders(folder):
    paths = [p for p in SOURCES if relative(p).startswith(f"hetero/{folder}/")]
    violations = {
        relative(p): modules
        for p in paths
        if (
            modules := {
                module.split(".")[1]
                for module in imports_at_load(p)
                if module.startswith("hetero.")
            }
            - ALLOWED_NEIGHBOURS[folder]
            - {folder, "devices", "scheduler"}
        )
    }
    assert violations == {}


def test_core_imports_no_applications_and_faces():
    core = [
        p
        for p in SOURCES
        if not relative(p).startswith(("hetero/apps/", "hetero/faces/"))
        and relative(p) not in ("hetero/__init__.py", *(f"hetero/{name}" for name in FACE_NAMES))
    ]
    violations = {
        relative(p): modules
        for p in core
        if (
            modules := {
                m for m in imports_at_load(p) if m.startswith(("hetero.apps", "hetero.faces"))
            }
        )
    }
    assert violations == {}


@pytest.mark.parametrize("name", LAZY_IMPORTS)
def test_imports_on_call_are_inside_functions(name):
    tree = ast.parse((ROOT / name).read_text())
    modules = [n.module for n in tree.body if isinstance(n, ast.ImportFrom)]
    assert LAZY_IMPORTS[name] not in modules


def test_application_imports_no_other_application():
    folders = {relative(p).split("/")[2] for p in SOURCES if relative(p).startswith("hetero/apps/")}
    violations = {
        relative(p): other
        for p in SOURCES
        if relative(p).startswith("hetero/apps/")
        for module in modules_at_load(p)
        if (other := module.removeprefix("hetero.apps.").partition(".")[0]) in folders
        and module.startswith("hetero.apps.")
        and other != relative(p).split("/")[2]
    }
    assert violations == {}


def test_every_folder_is_listed():
    folders = {relative(p.parent) for p in SOURCES if len(p.relative_to(ROOT).parts) == 3}
    names = {
        *FORBIDDEN_NEIGHBOURS,
        *(f"hetero/{name}" for name in ALLOWED_NEIGHBOURS),
        *TOP_FOLDERS,
    }
    assert folders - names == set()


def test_folders_of_tests_mirror_those_of_the_source():
    folders = {
        path.parent.relative_to(ROOT / "tests")
        for package in ("devices", "scheduler", "hetero")
        for path in (ROOT / "tests" / package).rglob("test_*.py")
    }
    assert len(folders) > 40
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []


def test_modules_have_no_import_cycles():
    modules = {module_name(p): p for p in SOURCES}
    graph = {
        name: {module for module in imports_at_load(path) if module in modules}
        for name, path in modules.items()
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle


def test_test_modules_import_no_other_test_module():
    violations = {
        relative(path): match.group()
        for path in (ROOT / "tests").rglob("*.py")
        if (match := re.search(r"^ *(from|import) tests[.\w]*\.test_\w+", path.read_text(), re.M))
    }
    assert violations == {}


@pytest.mark.parametrize(
    "name", sorted(p.parent.name for p in ROOT.glob("hetero/apps/*/command.py"))
)
def test_command_module_can_be_imported_first(name):
    code = f"import hetero.apps.{name}.command"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_commands_import_the_command_line():
    paths = [p for p in SOURCES if not fnmatch(relative(p), "hetero/cli/*")]
    paths = [p for p in paths if p.name not in ("__main__.py", "command.py")]
    assert [relative(p) for p in paths if "cli" in neighbours(p)] == []


def test_files_import_only_lower_layers():
    for path in SOURCES:
        name = relative(path)
        package = name.partition("/")[0]
        for module, level in imports(path):
            top = module.partition(".")[0]
            assert level == 0, f"{name}: relative import of {module!r}"
            assert top != "hetero" or module.startswith(ALLOWED[package]), (
                f"{name}: {package} must not import {module}"
            )
            allowed = LIBRARY_USERS.get(top)
            assert allowed is None or any(fnmatch(name, p) for p in allowed), (
                f"{name}: {module} is for {allowed}"
            )


def test_private_ray_modules_are_used_in_one_file():
    private = re.compile(r"\bray\._|internal_kv")
    paths = [relative(p) for p in SOURCES if private.search(p.read_text())]
    assert paths == ["scheduler/ray/private_api.py"]


@pytest.mark.parametrize(
    "machine", ["client/state_machine", "device/task_queue", "types/events", "types/plan"]
)
def test_state_machines_are_pure(machine):
    libraries = {
        module.partition(".")[0] for module, _ in imports(ROOT / "scheduler" / f"{machine}.py")
    }
    assert not libraries & {"time", "threading", "asyncio", "queue", "random", "concurrent", "ray"}
