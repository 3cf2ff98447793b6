"""The public API: its names, docstrings, and the modules that importing it loads."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from importlib import metadata

import pytest

import hetero
import hetero.backend
import hetero.devices.testing
import hetero.errors
import hetero.onnxruntime
import hetero.openvino
from hetero.devices import errors
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.gpu.plugin import GPUPlugin
from hetero.devices.null.plugin import NullPlugin
from hetero.devices.openvino.properties import OWN_PROPERTIES
from hetero.devices.ort.plugin import ORTPlugin
from hetero.devices.ort.provider_plugin import ProviderPlugin
from hetero.devices.plugin.properties import COMMON_PROPERTIES
from hetero.properties.table import HETERO_PROPERTIES

PUBLIC_MODULES = (
    hetero,
    hetero.backend,
    hetero.devices,
    hetero.devices.testing,
    hetero.onnxruntime,
    hetero.openvino,
    hetero.preprocess,
    hetero.properties,
)
PROPERTY_TABLES = (
    HETERO_PROPERTIES,
    COMMON_PROPERTIES,
    CPUPlugin.properties,
    GPUPlugin.properties,
    ORTPlugin.properties,
    ProviderPlugin.properties,
    OWN_PROPERTIES,
    NullPlugin.properties,
)

CORE = (
    "available_devices",
    "close",
    "compile_model",
    "get_property",
    "get_versions",
    "import_model",
    "query_model",
    "read_model",
    "register_plugin",
    "set_property",
    "unload_plugin",
)
COMPILED = (
    "__call__",
    "close",
    "create_infer_request",
    "export_model",
    "get_property",
    "get_runtime_model",
    "infer_new_request",
    "input",
    "inputs",
    "name",
    "output",
    "outputs",
    "release_memory",
    "set_property",
    "story",
    "subgraphs",
)
REQUEST = (
    "cancel",
    "get_input_tensor",
    "get_output_tensor",
    "get_tensor",
    "infer",
    "latency",
    "profiling_info",
    "results",
    "set_callback",
    "set_input_tensor",
    "set_tensor",
    "start_async",
    "wait",
    "wait_for",
    "future",
    "request_id",
)
QUEUE = ("is_ready", "set_callback", "start_async", "stream", "wait_all")


def test_every_public_name_exists_and_has_a_docstring():
    assert len(hetero.__all__) == len(set(hetero.__all__))
    assert dir(hetero) == sorted(hetero.__all__)
    for name in hetero.__all__:
        assert inspect.getdoc(getattr(hetero, name)), name


def test_type_checkers_see_every_public_name():
    source = inspect.getsource(hetero)
    imported = set(re.findall(r"^    from [\w.]+ import \w+ as (\w+)$", source, re.M))
    assert imported | set(hetero.errors.__all__) | {"__version__"} == set(hetero.__all__)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (hetero.Core, CORE),
        (hetero.CompiledModel, COMPILED),
        (hetero.InferRequest, REQUEST),
        (hetero.AsyncInferQueue, QUEUE),
    ],
)
def test_main_classes_have_their_names_with_docstrings(kind, names):
    for name in names:
        assert inspect.getdoc(inspect.getattr_static(kind, name)), f"{kind.__name__}.{name}"
    for name, member in vars(kind).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def public_members(kind: type) -> dict[str, object]:
    """Return the public methods and properties of a class and of its bases in hetero."""
    members: dict[str, object] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "hetero":
            for name, member in vars(base).items():
                member = getattr(member, "__func__", member)
                if inspect.isfunction(member) or isinstance(member, property):
                    members.setdefault(name, member)
    return {name: member for name, member in members.items() if not name.startswith("_")}


@pytest.mark.parametrize("module", PUBLIC_MODULES, ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring(module):
    assert inspect.getdoc(module)
    undocumented = []
    for name in module.__all__:
        exported = getattr(module, name)
        if inspect.isclass(exported) or inspect.isfunction(exported):
            undocumented += [name] if not exported.__doc__ else []
        if inspect.isclass(exported):
            undocumented += [
                f"{name}.{member_name}"
                for member_name, member in public_members(exported).items()
                if not inspect.getdoc(getattr(exported, member_name, member))
            ]
    assert undocumented == []


@pytest.mark.parametrize("table", PROPERTY_TABLES)
def test_every_property_has_a_description(table):
    assert [each.name for each in table.values() if len(each.doc) <= 5] == []


def test_context_manager_closes_the_core(monkeypatch):
    with hetero.Core("inprocess") as core:
        core.available_devices  # noqa: B018 - it starts the executor
    with pytest.raises(RuntimeError, match="closed"):
        core.available_devices  # noqa: B018


def test_every_error_is_a_hetero_error():
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    assert hetero.HeteroError in kinds
    assert all(issubclass(kind, hetero.HeteroError) for kind in kinds)


def test_every_error_is_exported():
    kinds = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert set(hetero.errors.__all__) == kinds
    assert kinds <= set(hetero.__all__)
    for name in kinds:
        assert getattr(hetero, name) is getattr(hetero.errors, name) is getattr(errors, name)


def test_version_and_result_types_are_exported():
    assert hetero.__version__ == metadata.version("hetero")
    with hetero.Core("inprocess") as core:
        model = core.read_model("light:bvlc_alexnet")
        assert isinstance(core.survey_model(model, "CPU"), hetero.Survey)
    for name in ("Costs", "PlanReport"):
        assert inspect.isclass(getattr(hetero, name))


def test_import_loads_no_vendor_runtime_and_no_ray():
    program = (
        "import sys, json, hetero; core = hetero.Core(); core.read_model('light:shufflenet');"
        "names = 'onnxruntime ray cupy openvino rich onnx.backend yaml asyncio "
        "http.server'.split();"
        "print(json.dumps([m for m in names if m in sys.modules]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert json.loads(process.stdout) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"executor": "threads"}, "'ray' or 'inprocess'"),
        ({"executor": "inprocess", "address": "127.0.0.1:6379"}, "with an address"),
    ],
)
def test_core_refuses_invalid_executor_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        hetero.Core(**arguments)


@pytest.mark.parametrize(
    "name", [pytest.param("scheduler.py", marks=pytest.mark.slow), "devices/__init__.py"]
)
def test_import_ignores_user_modules_of_same_name(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise AssertionError('the module of the user was imported')\n")
    program = "import hetero; core = hetero.Core('inprocess'); print(core.available_devices)"
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "CPU" in process.stdout, process.stderr
