"""What users import: the names that scripts rely on, explained, and light to import."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import hetero
import hetero.errors
from hetero.devices import errors
from tests import reference

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


def test_every_public_name_is_there_and_explained() -> None:
    assert len(hetero.__all__) == len(set(hetero.__all__))
    assert dir(hetero) == sorted(hetero.__all__)
    for name in hetero.__all__:
        assert inspect.getdoc(getattr(hetero, name)), name


def test_type_checkers_see_every_public_name() -> None:
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
def test_the_surface_has_its_names_and_each_is_explained(
    kind: type, names: tuple[str, ...]
) -> None:
    for name in names:
        assert inspect.getdoc(inspect.getattr_static(kind, name)), f"{kind.__name__}.{name}"
    for name, member in vars(kind).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_the_reference_is_what_the_code_says() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    assert page == reference.page(), "stale: `python -m tests.reference` writes it"


def test_all_that_is_public_is_explained() -> None:
    page = reference.page()
    for module in reference.MODULES:
        for name, thing in reference.public(module).items():
            assert f"`{name}" in page, name
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert reference.sentence(thing), name
            for member, found in reference.members(thing).items() if inspect.isclass(thing) else ():
                assert reference.sentence(found), f"{name}.{member}"
    for owner, properties in reference.PROPERTIES.items():
        for each in properties:
            assert len(each.doc) > 5, f"{each.name} of {owner}"


def test_the_context_managers_close(monkeypatch: pytest.MonkeyPatch) -> None:
    with hetero.Core("inprocess") as core:
        core.available_devices  # noqa: B018 - it starts the executor
    with pytest.raises(RuntimeError, match="closed"):
        core.available_devices  # noqa: B018


def test_every_error_is_a_hetero_error() -> None:
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    assert hetero.HeteroError in kinds
    assert all(issubclass(kind, hetero.HeteroError) for kind in kinds)


def test_every_error_is_in_hetero_and_in_hetero_errors() -> None:
    kinds = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert set(hetero.errors.__all__) == kinds
    assert kinds <= set(hetero.__all__)
    for name in kinds:
        assert getattr(hetero, name) is getattr(hetero.errors, name) is getattr(errors, name)


def test_the_version_and_the_types_of_results_are_exported() -> None:
    assert hetero.__version__ == metadata.version("hetero")
    with hetero.Core("inprocess") as core:
        model = core.read_model("light:bvlc_alexnet")
        assert isinstance(core.survey_model(model, "CPU"), hetero.Survey)
    for name in ("Costs", "PlanReport"):
        assert inspect.isclass(getattr(hetero, name))


def test_importing_it_loads_no_vendor_runtime_and_no_ray() -> None:
    program = (
        "import sys, json, hetero; core = hetero.Core(); core.read_model('light:shufflenet');"
        "names = 'onnxruntime ray cupy openvino rich onnx.backend yaml asyncio "
        "http.server'.split();"
        "print(json.dumps([m for m in names if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"executor": "threads"}, "'ray' or 'inprocess'"),
        ({"executor": "inprocess", "address": "127.0.0.1:6379"}, "Ray cluster"),
    ],
)
def test_a_core_refuses_what_it_cannot_be(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hetero.Core(**arguments)


@pytest.mark.parametrize("name", ["scheduler.py", "devices/__init__.py"])
def test_import_ignores_a_users_module_of_the_same_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise AssertionError('the module of the user was imported')\n")
    program = "import hetero; core = hetero.Core('inprocess'); print(core.available_devices)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "CPU" in done.stdout, done.stderr
