"""``hetero doctor``: all is well here; what is not is said, with what to do."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

import hetero.cli  # noqa: F401 - its command hides the module of the same name
from tests.support.command_line import Shell

doctor = sys.modules["hetero.cli.doctor"]


@pytest.fixture
def checks(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the checks by name, and the exit code."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(*arguments: str) -> tuple[dict[str, Any], int]:
        ended = shell("doctor --json", *arguments, ray=True)
        return {check["name"]: check for check in ended.document["checks"]}, ended.code

    return run


def test_checks_cover_versions_devices_and_limits(checks: Any) -> None:
    found, code = checks()
    assert code == (0 if all(check["ok"] for check in found.values()) else 1)
    assert found["hetero"]["ok"]
    assert found["numpy"]["ok"]
    assert found["device CPU"]["ok"]
    assert "pip install" in found["device ORT_CUDA"]["advice"]
    assert int(found["cores"]["found"]) >= 1


def test_package_outside_its_specifier_fails(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "0.0.1")
    found, code = checks()
    assert code == 1
    assert (found["numpy"]["ok"], found["numpy"]["found"]) == (False, "0.0.1")
    assert "pip install 'numpy" in found["numpy"]["advice"]


def test_device_with_wrong_results_fails(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MODEL", doctor._MODEL.replace("Relu", "Neg"))
    found, code = checks()
    assert code == 1
    assert found["device CPU"]["found"] == "wrong result"
    assert found["device CPU"]["advice"] == "hetero check-device CPU"


def test_unreachable_cluster_fails(checks: Any) -> None:
    found, code = checks("--address", "127.0.0.1:1")
    assert code == 1
    assert "ray status" in found["cluster"]["advice"]


def test_good_packages_and_absent_devices_take_one_line_each(shell: Shell) -> None:
    said = " ".join(shell("doctor", ray=True).out.split())
    packages = said.partition(" check ")[0]
    assert re.search(r"^hetero .*, numpy [\d.]+, onnx [\d.]+,", packages)
    (absent,) = re.findall(r"not installed: (.*); `hetero devices --all", said)
    assert "ORT_CUDA" in absent.split(", ")
