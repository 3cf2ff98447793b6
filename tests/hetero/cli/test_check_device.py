"""The command `hetero check-device`: conformance checks of a plugin."""

from __future__ import annotations

import pytest

from hetero.devices.testing import check_operators
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.careless_plugin import CarelessPlugin
from tests.support.command_line import CommandResult, Shell

DENSE = "DENSE --plugin hetero.examples.third_party_plugin:DensePlugin"
CARELESS = "CARELESS --plugin tests.support.careless_plugin:CarelessPlugin"


def check(shell: Shell, line: str) -> CommandResult:
    return shell(f"check-device {line}", ray=True)  # it has no option --executor


def test_conforming_plugin_passes_every_check(shell):
    result = check(shell, DENSE)
    assert result.code == 0
    num_passed, _, total = result.out.partition("passes ")[2].split()[:3]
    assert num_passed == total
    assert int(num_passed) > 30


def test_failed_check_is_described(shell):
    result = check(shell, CARELESS)
    assert result.code == 1
    assert "results are correct" in result.out
    rows = check(shell, f"{CARELESS} --json").document["checks"]
    assert "check_results_are_correct" in [row["name"] for row in rows if row["error"]]


@pytest.mark.slow  # conformance/test_suite.py runs the checks themselves
def test_device_list_is_checked_with_split_models(shell):
    result = check(shell, f"HETERO:CPU,{DENSE}")
    assert result.code == 0
    assert "HETERO:CPU,DENSE: passes " in result.out
    result = check(shell, f"HETERO:CPU,{CARELESS}")
    assert result.code == 1
    assert "results are correct" in result.out
    result = check(shell, "HETERO:CPU --operators")
    assert result.code == 2
    assert "one device" in result.err


def test_unknown_device_is_refused(shell):
    result = check(shell, "DENES --plugin hetero.examples.third_party_plugin:DensePlugin")
    assert result.code == 1
    assert "Did you mean DENSE?" in result.err


@pytest.mark.slow
def test_drawn_option_runs_random_cases(shell):
    result = check(shell, f"{DENSE} --drawn 5 --json")
    assert result.code == 0
    names = [row["name"] for row in result.document["checks"]]
    assert len([name for name in names if name.startswith("drawn/")]) == 5
    result = check(shell, "HETERO:CPU --drawn 5")
    assert result.code == 2
    assert "one device" in result.err


@pytest.mark.slow
def test_operators_option_runs_supported_cases_of_onnx():
    names = [result.name for result in check_operators(DensePlugin())]
    assert {"node/test_add", "node/test_relu", "node/test_matmul_2d"} <= set(names)
    assert "node/test_conv_with_autopad_same" not in names
    with pytest.raises(AssertionError, match=r"fails 1 of .* suite:\n  node/test_relu: ") as error:
        check_operators(CarelessPlugin())
    assert "node/test_add" not in str(error.value)
    check_operators(CarelessPlugin(), expected_failures={"node/test_relu": "a slope"})
