"""``hetero check-device``: a plugin's contract, from the shell."""

from __future__ import annotations

import pytest

from hetero.devices.testing import check_operators
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.careless_plugin import CarelessPlugin
from tests.support.command_line import Ended, Shell

DENSE = "DENSE --plugin hetero.examples.third_party_plugin:DensePlugin"
CARELESS = "CARELESS --plugin tests.support.careless_plugin:CarelessPlugin"


def check(shell: Shell, line: str) -> Ended:
    return shell(f"check-device {line}", ray=True)  # it asks no executor


def test_a_plugin_that_keeps_the_contract(shell: Shell) -> None:
    done = check(shell, DENSE)
    assert done.code == 0
    passed, _, total = done.out.partition("passes ")[2].split()[:3]
    assert passed == total
    assert int(passed) > 30


def test_a_fault_is_told_in_words(shell: Shell) -> None:
    done = check(shell, CARELESS)
    assert done.code == 1
    assert "results are correct" in done.out
    rows = check(shell, f"{CARELESS} --json").document["checks"]
    assert "check_results_are_correct" in [row["name"] for row in rows if row["error"]]


@pytest.mark.slow  # conformance/test_suite.py runs the checks themselves
def test_a_list_is_checked_with_models_that_are_cut(shell: Shell) -> None:
    done = check(shell, f"HETERO:CPU,{DENSE}")
    assert done.code == 0
    assert "HETERO:CPU,DENSE: keeps " in done.out
    done = check(shell, f"HETERO:CPU,{CARELESS}")
    assert done.code == 1
    assert "results are correct" in done.out
    done = check(shell, "HETERO:CPU --operators")
    assert done.code == 2
    assert "one device" in done.err


def test_a_device_that_is_not_there(shell: Shell) -> None:
    done = check(shell, "DENES --plugin hetero.examples.third_party_plugin:DensePlugin")
    assert done.code == 1
    assert "Did you mean DENSE?" in done.err


@pytest.mark.slow
def test_onnxs_own_suite_is_run_on_what_a_plugin_takes() -> None:
    names = [result.name for result in check_operators(DensePlugin())]
    assert {"node/test_add", "node/test_relu", "node/test_matmul_2d"} <= set(names)
    assert "node/test_conv_with_autopad_same" not in names
    with pytest.raises(AssertionError, match=r"fails 1 of .* suite:\n  node/test_relu: ") as failed:
        check_operators(CarelessPlugin())
    assert "node/test_add" not in str(failed.value)
    check_operators(CarelessPlugin(), expected_failures={"node/test_relu": "a slope"})
