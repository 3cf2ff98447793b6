"""The command `hetero doctor`: checks of the installation, each with advice."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hetero.cli import doctor


@pytest.fixture
def checks(shell, monkeypatch):
    """A function that returns the checks by name and the exit code."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(*arguments: str) -> tuple[dict[str, Any], int]:
        result = shell("doctor --json", *arguments, ray=True)
        return {check["name"]: check for check in result.document["checks"]}, result.code

    return run


def test_checks_cover_versions_devices_and_limits(checks):
    checks_by_name, code = checks()
    assert code == (0 if all(check["ok"] for check in checks_by_name.values()) else 1)
    assert checks_by_name["hetero"]["ok"]
    assert checks_by_name["numpy"]["ok"]
    assert checks_by_name["device CPU"]["ok"]
    assert "pip install" in checks_by_name["device ORT_CUDA"]["advice"]
    assert int(checks_by_name["cores"]["found"]) >= 1


def test_package_outside_its_specifier_fails(checks, monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "0.0.1")
    checks_by_name, code = checks()
    assert code == 1
    assert (checks_by_name["numpy"]["ok"], checks_by_name["numpy"]["found"]) == (False, "0.0.1")
    assert "pip install 'numpy" in checks_by_name["numpy"]["advice"]


def test_device_with_wrong_results_fails(checks, monkeypatch):
    monkeypatch.setattr(doctor, "_MODEL", doctor._MODEL.replace("Relu", "Neg"))
    checks_by_name, code = checks()
    assert code == 1
    assert checks_by_name["device CPU"]["found"] == "wrong result"
    assert checks_by_name["device CPU"]["advice"] == "hetero check-device CPU"


def test_unreachable_cluster_fails(checks):
    checks_by_name, code = checks("--address", "127.0.0.1:1")
    assert code == 1
    assert "ray status" in checks_by_name["cluster"]["advice"]


def test_doctor_prints_one_line_per_package_and_device(shell):
    text = " ".join(shell("doctor", ray=True).out.split())
    packages = text.partition(" check ")[0]
    assert re.search(r"^hetero .*, numpy [\d.]+, onnx [\d.]+,", packages)
    (names,) = re.findall(r"not installed: (.*); `hetero devices --all", text)
    assert "ORT_CUDA" in names.split(", ")
