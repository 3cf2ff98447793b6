"""The conformance suite: what every device promises, for plugin authors to run on theirs.

::

    from devices.testing import check_device, check_operators, device_checks

    check_device(MyPlugin())                                    # anywhere
    check_operators(MyPlugin())                                 # ONNX's own suite

    @pytest.mark.parametrize("check", device_checks(), ids=lambda c: c.__name__)
    def test_device(check):                                     # or one test a check
        check(MyPlugin())

A check is a function of a plugin that raises AssertionError with a sentence. Samples with
operators that the device refuses are left out; what a device does not offer (export, remote
memory) only has to be refused with the right error. From a shell: ``hetero check-device NAME``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from devices.conformance import export_checks, property_checks, query_checks, request_checks
from devices.plugin.plugin import Plugin
from devices.plugin.properties import Config

__all__ = [
    "Check", "CheckResult", "check_device", "check_operators", "device_checks", "device_results",
    "operator_results",
]  # fmt: skip

Check = Callable[[Plugin], None]

_MODULES: Final[tuple[ModuleType, ...]] = (
    property_checks,
    query_checks,
    request_checks,
    export_checks,
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one check went.

    Attributes
    ----------
    name : str
        The check's.
    error : str or None
        What it found; None if nothing.
    expected : str or None
        Why a failure was expected, if it was.
    """

    name: str
    error: str | None
    expected: str | None = None


def device_checks() -> tuple[Check, ...]:
    """Return the checks, in the order in which their failures explain each other."""
    checks: list[Check] = []
    for module in _MODULES:
        mine = [
            function
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if name.startswith("check_") and function.__module__ == module.__name__
        ]
        checks += sorted(mine, key=lambda function: function.__code__.co_firstlineno)
    return tuple(checks)


def check_device(
    plugin: Plugin, *, expected_failures: Mapping[str, str] | None = None
) -> tuple[CheckResult, ...]:
    """Run every check and return how each went.

    Parameters
    ----------
    plugin : Plugin
        What is checked; its properties are as before afterwards.
    expected_failures : mapping of str to str, optional
        Checks that are known to fail, with the reason.

    Raises
    ------
    AssertionError
        Listing every check that failed and was not expected to, and every one that was and
        did not.
    """
    known = {check.__name__ for check in device_checks()}
    return _judged(plugin, device_results(plugin), expected_failures or {}, known, "checks")


def check_operators(
    plugin: Plugin,
    config: Config | None = None,
    *,
    expected_failures: Mapping[str, str] | None = None,
) -> tuple[CheckResult, ...]:
    """Run ONNX's own suite on all of its cases that a plugin takes, and return how each went.

    Parameters
    ----------
    plugin : Plugin
        What is checked.
    config : mapping, optional
        Options for the compilations.
    expected_failures : mapping of str to str, optional
        Cases, as ``node/test_abs``, that are known to fail, with the reason.

    Raises
    ------
    AssertionError
        Listing every case that failed and was not expected to, and every one that was and did not.
    ImportError
        The suite wants Pillow, which ``pip install 'hetero[test]'`` brings.
    """
    from devices.conformance.onnx_suite import backend_cases

    known = {case.name for case in backend_cases()}
    results = operator_results(plugin, config)
    return _judged(plugin, results, expected_failures or {}, known, "cases of ONNX's suite")


def device_results(plugin: Plugin) -> Iterator[CheckResult]:
    """Run the checks one by one, yielding how each went."""
    for check in device_checks():
        error = None
        try:
            check(plugin)
        except Exception as raised:  # any error is the finding
            error = f"{type(raised).__name__}: {raised}"
        yield CheckResult(check.__name__, error)


def operator_results(plugin: Plugin, config: Config | None = None) -> Iterator[CheckResult]:
    """Run the cases of ONNX's suite that the plugin takes, yielding how each went."""
    from devices.conformance.onnx_suite import backend_cases, outcome

    for case in backend_cases():
        said = outcome(plugin, case, config or {})
        if said != "refused":
            yield CheckResult(case.name, None if said == "passed" else said)


def _judged(
    plugin: Plugin,
    results: Iterable[CheckResult],
    expected: Mapping[str, str],
    known: set[str],
    what: str,
) -> tuple[CheckResult, ...]:
    """Return the results, or raise AssertionError if they are not as expected."""
    unknown = sorted(set(expected) - known)
    problems = [f"{name}: expected to fail, but there is no such check" for name in unknown]
    judged = tuple(CheckResult(r.name, r.error, expected.get(r.name)) for r in results)
    for result in judged:
        if result.error and result.expected is None:
            problems.append(f"{result.name}: {result.error}")
        elif not result.error and result.expected is not None:
            why = result.expected
            problems.append(f"{result.name}: passes, though it is expected to fail ({why})")
    if problems:
        listed = "\n  ".join(problems)
        raise AssertionError(
            f"device {plugin.name} fails {len(problems)} of {len(judged)} {what}:\n  {listed}"
        )
    return judged
