"""Conformance suite: checks of the plugin contract, for authors of plugins.

::

    from hetero.devices.testing import check_device, check_operators, device_checks

    check_device(MyPlugin())                                    # all checks
    check_operators(MyPlugin())                                 # ONNX's backend test suite

    @pytest.mark.parametrize("check", device_checks(), ids=lambda c: c.__name__)
    def test_device(check):                                     # or one test per check
        check(MyPlugin())

A check is a function of a plugin that raises AssertionError with a message. It skips samples with
operators that the device refuses. Optional features (export, remote memory) must work or raise the
documented error. The checks of `subject_checks` also accept devices of a Core, or any other
`hetero.devices.conformance.subject.Subject`; ``hetero check-device NAME`` runs them.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

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
from hetero.devices.errors import HeteroError
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.properties import Config

if TYPE_CHECKING:
    from hetero.devices.conformance.drawn_cases import OperatorCase

__all__ = [
    "Check",
    "CheckResult",
    "Subject",
    "SubjectCheck",
    "check_device",
    "check_operators",
    "device_checks",
    "device_results",
    "drawn_results",
    "operator_results",
    "subject_checks",
]

#: Random cases that are drawn for each requested one, because the plugin may refuse most of them.
_DRAWS_PER_CASE: Final = 20
#: Cases of an operator that show whether the plugin supports it.
_TRIED_CASES: Final = 3
#: Longest name of a drawn case, which describes its inputs and attributes.
_LONGEST_NAME: Final = 300

Check = Callable[[Plugin], None]
SubjectCheck = Callable[[Subject], None]

#: Modules with checks of every Subject.
_MODULES: Final = (property_checks, query_checks, request_checks, export_checks, memory_checks)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes
    ----------
    name : str
        The name of the check.
    error : str or None
        The error's message; None if the check passed.
    expected : str or None
        The reason of an expected failure.
    """

    name: str
    error: str | None
    expected: str | None = None


def device_checks() -> tuple[Check, ...]:
    """Return the checks of a plugin; earlier failures may cause later ones."""

    def plugin_check(check: SubjectCheck) -> Check:
        return wraps(check)(lambda plugin: check(PluginSubject(plugin)))

    return (*_checks((plugin_checks,)), *map(plugin_check, subject_checks()))


def subject_checks() -> tuple[SubjectCheck, ...]:
    """Return the checks that accept every Subject."""
    return _checks(_MODULES)


def _checks(modules: Sequence[ModuleType]) -> tuple[Callable[[Any], None], ...]:
    """Return the check functions of modules in source order."""
    checks: list[Callable[[Any], None]] = []
    for module in modules:
        functions = [
            function
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if name.startswith("check_") and function.__module__ == module.__name__
        ]
        checks += sorted(functions, key=lambda function: function.__code__.co_firstlineno)
    return tuple(checks)


def check_device(
    subject: Plugin | Subject, *, expected_failures: Mapping[str, str] | None = None
) -> tuple[CheckResult, ...]:
    """Run all checks, and return their results.

    Parameters
    ----------
    subject : Plugin or Subject
        The subject of the checks; its properties are restored afterwards.
    expected_failures : mapping of str to str, optional
        Names of checks that fail -> the reason.

    Raises
    ------
    AssertionError
        If a check fails unexpectedly, or passes despite an expected failure; lists all of them.
    """
    names = {check.__name__ for check in device_checks()}
    results = device_results(subject)
    return _require(subject, results, expected_failures or {}, names, "checks")


def check_operators(
    plugin: Plugin,
    config: Config | None = None,
    *,
    expected_failures: Mapping[str, str] | None = None,
) -> tuple[CheckResult, ...]:
    """Run the cases of ONNX's backend test suite that a plugin supports.

    Parameters
    ----------
    plugin : Plugin
        The plugin to check.
    config : mapping, optional
        Options for the compilations.
    expected_failures : mapping of str to str, optional
        Names of cases that fail, such as ``node/test_abs`` -> the reason.

    Raises
    ------
    AssertionError
        If a case fails unexpectedly, or passes despite an expected failure; lists all of them.
    ImportError
        If Pillow is missing, which the suite needs; ``pip install pillow``.
    """
    from hetero.devices.conformance.onnx_suite import backend_cases

    names = {case.name for case in backend_cases()}
    results = operator_results(plugin, config)
    return _require(plugin, results, expected_failures or {}, names, "cases of ONNX's suite")


def device_results(subject: Plugin | Subject) -> Iterator[CheckResult]:
    """Run the checks one by one, and yield their results."""
    checks: Sequence[Callable[[Any], None]] = (
        device_checks() if isinstance(subject, Plugin) else subject_checks()
    )
    for check in checks:
        error = None
        try:
            check(subject)
        except Exception as exception:  # every error is a failure of the check
            error = f"{type(exception).__name__}: {exception}"
        yield CheckResult(check.__name__, error)


def operator_results(plugin: Plugin, config: Config | None = None) -> Iterator[CheckResult]:
    """Run the cases of ONNX's suite that the plugin supports, and yield their results."""
    from hetero.devices.conformance.onnx_suite import backend_cases, outcome

    for case in backend_cases():
        result = outcome(plugin, case, config or {})
        if result != "refused":
            yield CheckResult(case.name, None if result == "passed" else result)


def drawn_results(plugin: Plugin, num_cases: int, seed: int = 0) -> Iterator[CheckResult]:
    """Run random cases of single operators, and compare them with device CPU.

    The cases have other numbers, element types, attributes and opsets than ONNX's suite, whose
    cases are all of the newest opset.

    Parameters
    ----------
    plugin : Plugin
        The plugin to check.
    num_cases : int
        Number of cases that the plugin supports; fewer if it supports few operators.
    seed : int
        Seed of the cases.
    """
    from hetero.devices.conformance.drawn_cases import older_case, random_case, seeds, suite_cases
    from hetero.devices.cpu.plugin import CPUPlugin

    def supports(case: OperatorCase) -> bool:
        return not plugin.query_model(read_model(case.model())).unsupported

    reference = CPUPlugin()
    op_types = [op for op in seeds() if any(map(supports, suite_cases(op)[:_TRIED_CASES]))]
    num_results = 0
    for i in range(num_cases * _DRAWS_PER_CASE if op_types else 0):
        random = np.random.default_rng((seed, i))
        case = (random_case, older_case)[i % 2](random, op_types)
        if "special" in case.changes:  # devices may propagate NaN and infinity otherwise
            continue
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # random numbers overflow
            error = _drawn_error(case, plugin, reference)
        if error is not None:
            name = " ".join(f"drawn/{seed}/{i} {case}".split())
            yield CheckResult(name[:_LONGEST_NAME], error or None)
            num_results += 1
            if num_results == num_cases:
                return


def _drawn_error(case: OperatorCase, plugin: Plugin, reference: Plugin) -> str | None:
    """Return a case's error, an empty text if it passes, or None if a device refuses it."""
    from hetero.devices.conformance.drawn_cases import result_difference

    model, feeds = read_model(case.model()), case.feeds()
    try:
        if plugin.query_model(model).unsupported or reference.query_model(model).unsupported:
            return None
        expected = reference.compile_model(model)(feeds).to_tuple()
    except HeteroError:  # an operator refuses the numbers
        return None
    try:
        results = plugin.compile_model(model)(feeds).to_tuple()
    except Exception as error:  # every error is a failure of the case
        return f"{type(error).__name__}: {error}"
    pairs = zip(results, expected, strict=True)
    return next((text for a, e in pairs if (text := result_difference(a, e))), "")


def _require(
    subject: Plugin | Subject,
    results: Iterable[CheckResult],
    expected_failures: Mapping[str, str],
    names: set[str],
    kind: str,
) -> tuple[CheckResult, ...]:
    """Return the results with expected failures; AssertionError if others differ from these.

    `names` are those of all checks of this `kind`.
    """
    unknown_names = sorted(set(expected_failures) - names)
    problems = [f"{name}: expected to fail, but there is no such check" for name in unknown_names]
    final_results = tuple(
        CheckResult(r.name, r.error, expected_failures.get(r.name)) for r in results
    )
    for result in final_results:
        if result.error and result.expected is None:
            problems.append(f"{result.name}: {result.error}")
        elif not result.error and result.expected is not None:
            problems.append(f"{result.name}: expected to fail ({result.expected}), but it passes")
    if problems:
        lines = "\n  ".join(problems)
        raise AssertionError(
            f"device {subject.name} fails {len(problems)} of {len(final_results)} {kind}:\n"
            f"  {lines}"
        )
    return final_results
