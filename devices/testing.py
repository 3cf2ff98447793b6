"""The conformance suite: what every device promises, for plugin authors to run on theirs.

::

    from devices.testing import check_device, device_checks

    check_device(MyPlugin())                                    # anywhere

    @pytest.mark.parametrize("check", device_checks(), ids=lambda c: c.__name__)
    def test_device(check):                                     # or one test a check
        check(MyPlugin())

A check is a function of a plugin that raises AssertionError with a sentence. Samples with
operators that the device refuses are left out; what a device does not offer (export, remote
memory) only has to be refused with the right error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from devices.conformance import export_checks, property_checks, query_checks, request_checks
from devices.plugin.plugin import Plugin

__all__ = ["Check", "CheckResult", "check_device", "device_checks"]

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
    expected = dict(expected_failures or {})
    checks = {check.__name__: check for check in device_checks()}
    unknown = sorted(set(expected) - set(checks))
    problems = [f"{name}: expected to fail, but there is no such check" for name in unknown]
    results = []
    for name, check in checks.items():
        error = None
        try:
            check(plugin)
        except Exception as raised:  # any error is the finding
            error = f"{type(raised).__name__}: {raised}"
        results.append(CheckResult(name, error, expected.get(name)))
        if error and name not in expected:
            problems.append(f"{name}: {error}")
        elif not error and name in expected:
            problems.append(f"{name}: passes, though it is expected to fail ({expected[name]})")
    if problems:
        listed = "\n  ".join(problems)
        raise AssertionError(
            f"device {plugin.name} fails {len(problems)} of {len(checks)} checks:\n  {listed}"
        )
    return tuple(results)
