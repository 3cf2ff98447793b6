"""The conformance suite: what every device promises, for plugin authors to run on theirs.

::

    from hetero.devices.testing import check_device, check_operators, device_checks

    check_device(MyPlugin())                                    # anywhere
    check_operators(MyPlugin())                                 # ONNX's own suite

    @pytest.mark.parametrize("check", device_checks(), ids=lambda c: c.__name__)
    def test_device(check):                                     # or one test a check
        check(MyPlugin())

A check is a function of a plugin that raises AssertionError with a sentence. Samples with
operators that the device refuses are left out; what a device does not offer (export, remote
memory) only has to be refused with the right error. Those of `subject_checks` are functions of
whatever compiles models (`hetero.devices.conformance.subject.Subject`): the devices of a Core as
well, one or several, as ``hetero check-device NAME`` runs them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any, Final

from hetero.devices.conformance import (
    export_checks,
    memory_checks,
    plugin_checks,
    property_checks,
    query_checks,
    request_checks,
)
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.conformance.subject import Subject
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.properties import Config

__all__ = [
    "Check",
    "CheckResult",
    "Subject",
    "SubjectCheck",
    "check_device",
    "check_operators",
    "device_checks",
    "device_results",
    "operator_results",
    "subject_checks",
]

Check = Callable[[Plugin], None]
SubjectCheck = Callable[[Subject], None]

#: Checks of every subject.
_MODULES: Final = (property_checks, query_checks, request_checks, export_checks, memory_checks)


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
    """Return a plugin's checks, in the order in which their failures explain each other."""

    def of_plugin(check: SubjectCheck) -> Check:
        return wraps(check)(lambda plugin: check(PluginSubject(plugin)))

    return (*_checks((plugin_checks,)), *map(of_plugin, subject_checks()))


def subject_checks() -> tuple[SubjectCheck, ...]:
    """Return the checks that hold for whatever compiles models."""
    return _checks(_MODULES)


def _checks(modules: Sequence[ModuleType]) -> tuple[Callable[[Any], None], ...]:
    """Return the checks of modules, in the order in which they are written."""
    checks: list[Callable[[Any], None]] = []
    for module in modules:
        mine = [
            function
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if name.startswith("check_") and function.__module__ == module.__name__
        ]
        checks += sorted(mine, key=lambda function: function.__code__.co_firstlineno)
    return tuple(checks)


def check_device(
    subject: Plugin | Subject, *, expected_failures: Mapping[str, str] | None = None
) -> tuple[CheckResult, ...]:
    """Run every check and return how each went.

    Parameters
    ----------
    subject : Plugin or Subject
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
    return _judged(subject, device_results(subject), expected_failures or {}, known, "checks")


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
    from hetero.devices.conformance.onnx_suite import backend_cases

    known = {case.name for case in backend_cases()}
    results = operator_results(plugin, config)
    return _judged(plugin, results, expected_failures or {}, known, "cases of ONNX's suite")


def device_results(subject: Plugin | Subject) -> Iterator[CheckResult]:
    """Run the checks one by one, yielding how each went."""
    checks: Sequence[Callable[[Any], None]] = (
        device_checks() if isinstance(subject, Plugin) else subject_checks()
    )
    for check in checks:
        error = None
        try:
            check(subject)
        except Exception as raised:  # any error is the finding
            error = f"{type(raised).__name__}: {raised}"
        yield CheckResult(check.__name__, error)


def operator_results(plugin: Plugin, config: Config | None = None) -> Iterator[CheckResult]:
    """Run the cases of ONNX's suite that the plugin takes, yielding how each went."""
    from hetero.devices.conformance.onnx_suite import backend_cases, outcome

    for case in backend_cases():
        said = outcome(plugin, case, config or {})
        if said != "refused":
            yield CheckResult(case.name, None if said == "passed" else said)


def _judged(
    subject: Plugin | Subject,
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
            f"device {subject.name} fails {len(problems)} of {len(judged)} {what}:\n  {listed}"
        )
    return judged
