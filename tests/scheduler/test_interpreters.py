"""Plugins with another Python interpreter: unusable interpreters are refused before Ray starts."""

import json
import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest

import hetero
from hetero.devices.errors import PluginLoadError
from hetero.devices.plugin.plugin_source import PluginSource
from hetero.scheduler.ray import interpreters

OURS = {
    "Python": platform.python_version(),
    "ray": metadata.version("ray"),
    "hetero": metadata.version("hetero"),
}


@pytest.mark.parametrize(
    ("text", "source", "label"),
    [
        ("my.module:Plugin", ("", "my.module:Plugin", ""), "my.module:Plugin"),
        ("MY=my.module:Plugin", ("MY", "my.module:Plugin", ""), "MY"),
        ("ORT@/opt/a=b/bin/python", ("", "ORT", "/opt/a=b/bin/python"), "ORT"),
        ("OLD=ORT@~/old", ("OLD", "ORT", "~/old"), "OLD"),
    ],
)
def test_plugin_spec_names_its_interpreter(text, source, label):
    parsed = PluginSource.parse(text)
    assert (parsed, parsed.label, str(parsed)) == (source, label, text)


def interpreter(folder: Path, body: str) -> str:
    """Return a file that acts as an interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo no such library >&2; exit 1", "no Python of use: no such library"),
        ("echo hello", "no Python of use"),
        (f"echo '{json.dumps(OURS | {'Python': '3.99.1'})}'", "has Python 3.99.1, not"),
        (f"echo '{json.dumps(OURS | {'ray': '2.1.0', 'hetero': None})}'", "hetero missing, not"),
    ],
)
def test_unusable_interpreter_error_names_the_reason(tmp_path, body, says):
    with pytest.raises(PluginLoadError, match=says):
        interpreters._interpreter(interpreter(tmp_path, body))


def test_environment_folder_stands_for_its_interpreter(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    minor = ".".join(OURS["Python"].split(".")[:2])
    report = json.dumps(OURS | {"Python": f"{minor}.99"})  # the patch version does not matter
    python.write_text(f"#!/bin/sh\necho '{report}'\n")
    python.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert interpreters._interpreter(f"~/{tmp_path.name}") == str(python)


def test_plugin_with_interpreter_needs_ray_in_process():
    with hetero.Core("inprocess", plugins=[f"CPU@{sys.executable}"]) as core:
        (row,) = (row for row in core.device_descriptors if row.name == "CPU")
        assert "executor='ray'" in row.error
        with pytest.raises(PluginLoadError, match="--executor ray"):
            core.resolve_devices("CPU")
