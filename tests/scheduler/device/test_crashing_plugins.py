"""Plugins that end the process while they are loaded or list their devices."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hetero.devices.plugin.registry import load_plugins
from hetero.scheduler.device.discovery import probe_node
from tests.support.segfault_plugin import VARIABLE

SPEC = "tests.support.segfault_plugin:SegfaultPlugin"
PROGRAM = f"""
from hetero.devices.plugin.registry import load_plugins
from hetero.scheduler.device.discovery import probe_node
probe_node("here", entries=load_plugins([{SPEC!r}], entry_points=False))
"""
ROOT = Path(__file__).parents[3]


def list_devices():
    return probe_node("here", entries=load_plugins([SPEC], entry_points=False))


@pytest.mark.parametrize("method", ["constructor", "device_ids"])
def test_crash_while_listing_is_a_row_of_the_next_process(monkeypatch, tmp_path, method):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(VARIABLE, method)
    process = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, check=False)
    assert process.returncode == -signal.SIGSEGV
    (row,) = list_devices()
    assert row.error == (
        f"plugin {SPEC} cannot list its devices: its process ended with SIGSEGV. Update or "
        "uninstall the package that contains it."
    )
    monkeypatch.delenv(VARIABLE)
    (row,) = list_devices()
    assert (row.name, row.error) == ("SEGFAULT.0", None)
    assert list(tmp_path.rglob("*")) == []


def test_marks_of_running_processes_need_no_trial(monkeypatch, tmp_path):
    from hetero.devices.plugin.crash_marks import marked

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        "hetero.devices.plugin.crash_marks.WorkerProcess", lambda *_: pytest.fail("a trial")
    )
    with marked(SPEC):
        (row,) = list_devices()
    assert row.error is None


def test_folder_of_another_owner_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"hetero-plugins-{tmp_path.stat().st_uid}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (row,) = list_devices()
    assert row.error is None
