"""Mutants of a source file: mutmut's operators, and operators that drop statements and terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_match

from benchmarks.mutants.mutant import Mutant

#: Functions -> functions with the same arguments.
_COUNTERPARTS: Final = {
    "max": ("min", "sum"),
    "min": ("max",),
    "sum": ("max",),
    "any": ("all",),
    "all": ("any",),
    "sorted": ("list",),
    "ceil": ("floor",),
    "floor": ("ceil",),
}
#: Calls whose arguments only serve type checkers and readers.
_UNMUTATED_CALLS: Final = frozenset({"cast", "TypeVar", "overload", "getLogger"})
_LOGGERS: Final = frozenset({"_log", "log", "logger", "logging", "warnings"})


def mutants_of(root: Path, path: Path) -> dict[Mutant, str]:
    """Return the mutants of a file with the mutated source of each."""
    source = path.read_text()
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    visitor = _Changes()
    wrapper.visit(visitor)
    lines = source.splitlines(keepends=True)
    mutants: dict[Mutant, str] = {}
    for change in visitor.changes:
        before, after = wrapper.module.code_for_node(change.node), change.replacement
        change_text = _difference(_one_line(before), _one_line(after))
        if change_text is None:
            continue
        same = (m for m in mutants if (m.function, m.change) == (change.function, change_text))
        mutant = Mutant(
            path.relative_to(root).as_posix(),
            change.function,
            change.range.start.line,
            change.range.end.line,
            change_text,
            sum(1 for _ in same),
        )
        mutants[mutant] = _replaced(lines, change.range, after)
    return mutants


@dataclass(frozen=True)
class _Change:
    node: cst.CSTNode
    replacement: str
    range: CodeRange
    function: str


class _Changes(cst.CSTVisitor):
    """Collects the changes of a module."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[_Change] = []
        self._scopes: list[str] = []
        self._function = ""

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _LEFT_OUT) or _is_skipped(node):
            return False
        if isinstance(node, cst.FunctionDef):
            self._visit_function(node)
            return False
        if isinstance(node, cst.ClassDef):
            self._scopes.append(node.name.value)
            node.body.visit(self)
            self._scopes.pop()
            return False
        match node:
            case cst.MatchCase(guard=None):
                self._add(node.pattern, f"{_code(node.pattern)} if False")
            case cst.MatchCase():
                self._add(node.guard, "False")
            case cst.If() | cst.While() if not isinstance(node.test, _NEGATED_BY_OPERATORS):
                self._add(node.test, f"not ({_code(node.test)})")
        if isinstance(node, _MUTATED):
            for text in replacements(node):
                self._add(node, text)
        return True

    def _add(self, node: cst.CSTNode | None, replacement: str) -> None:
        position = self.get_metadata(PositionProvider, node, None) if node else None
        if node is not None and position is not None:
            self.changes.append(_Change(node, replacement, position, self._function))

    def _visit_function(self, node: cst.FunctionDef) -> None:
        node.params.visit(self)  # defaults belong to the scope around the function
        outer = self._function
        self._function = outer or ".".join([*self._scopes, node.name.value])
        node.body.visit(self)
        self._function = outer


#: Nodes without behaviour, or whose text is for people.
_LEFT_OUT: Final = (
    cst.Annotation,
    cst.Decorator,
    cst.Import,
    cst.ImportFrom,
    cst.FormattedString,
    cst.ConcatenatedString,
    cst.Assert,
    cst.BaseParenthesizableWhitespace,
    cst.Comment,
)
_MUTATED: Final = (
    cst.BaseExpression,
    cst.BaseStatement,
    cst.BaseSmallStatement,
    cst.ComparisonTarget,
    cst.BaseCompOp,
)
#: Conditions that mutmut's operators invert.
_NEGATED_BY_OPERATORS: Final = (cst.Comparison, cst.BooleanOperation, cst.UnaryOperation)


def _is_skipped(node: cst.CSTNode) -> bool:
    """Return whether a node has no behaviour that a test should observe."""
    match node:
        case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
            return True  # a docstring
        case cst.Call(func=cst.Name(value=name)) if name in _UNMUTATED_CALLS:
            return True
        case cst.Call(func=cst.Attribute(value=cst.Name(value=name))) if name in _LOGGERS:
            return True
        case cst.Expr(value=cst.Call() as call):
            return _is_skipped(call)
        case cst.Arg(keyword=cst.Name(value="strict")):
            return True  # of `zip`: a check of the code itself
        case cst.If(test=cst.Name(value="TYPE_CHECKING")):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
            return name in {"__all__", "__slots__", "METADATA_DEPENDENCIES"}
        case cst.AnnAssign(value=None):
            return True
    return False


def replacements(node: cst.CSTNode) -> Iterator[str]:
    """Yield the texts that replace a node in its mutants."""
    seen = {_code(node)}
    for kind, operator in (*mutation_operators, *_OWN_OPERATORS):
        if not isinstance(node, kind) or operator is operator_match:  # it loses the indentation
            continue
        for replacement in operator(node):
            text = _code(replacement)
            if text not in seen and not _concerns_prose(node, replacement):
                seen.add(text)
                yield text


def _concerns_prose(node: cst.CSTNode, replacement: cst.CSTNode) -> bool:
    """Return whether a replacement only changes text for people or a check of the code itself."""
    if isinstance(node, cst.SimpleString):
        # An option of `open`, an encoding or a key has no spaces; case variants say little more.
        return " " in node.value or not _code(replacement).strip("\"'rb").startswith("XX")
    if isinstance(node, cst.Call) and isinstance(replacement, cst.Call):
        kept = {_code(argument.value) for argument in replacement.args}
        lost = [a for a in node.args if _code(a.value) not in kept]
        if any(isinstance(a.value, cst.FormattedString | cst.ConcatenatedString) for a in lost):
            return True
        if any(isinstance(a.value, cst.SimpleString) and " " in a.value.value for a in lost):
            return True
        return any(a.keyword is not None and a.keyword.value == "strict" for a in lost)
    return False


def _other_aggregate(node: cst.Call) -> Iterator[cst.Call]:
    """Replace ``max`` by ``sum``, ``any`` by ``all``, and so on."""
    name = node.func.value if isinstance(node.func, cst.Name) else None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in {"ceil", "floor"}:
        other = _COUNTERPARTS[node.func.attr.value][0]
        yield node.with_changes(func=node.func.with_changes(attr=cst.Name(other)))
    for other in _COUNTERPARTS.get(name, ()) if isinstance(name, str) else ():
        if other == "sum" and len(node.args) != 1:
            continue
        yield node.with_changes(func=cst.Name(other))


def _without_a_term(node: cst.BinaryOperation | cst.BooleanOperation) -> Iterator[Any]:
    """Keep one operand of two."""
    yield node.left
    if not isinstance(getattr(node, "operator", None), cst.Subtract | cst.Divide):
        yield node.right


def _without_statement(node: cst.BaseSmallStatement) -> Iterator[cst.Pass]:
    """Drop a call, an exception or a deletion."""
    if isinstance(node, cst.Raise | cst.Del) or (
        isinstance(node, cst.Expr) and isinstance(node.value, cst.Call | cst.Await)
    ):
        yield cst.Pass()


_OWN_OPERATORS: Final[Sequence[tuple[Any, Callable[[Any], Iterator[Any]]]]] = (
    (cst.Call, _other_aggregate),
    ((cst.BinaryOperation, cst.BooleanOperation), _without_a_term),
    ((cst.Expr, cst.Raise, cst.Del), _without_statement),
)


@cache
def _empty_module() -> cst.Module:
    return cst.Module([])


def _code(node: cst.CSTNode) -> str:
    return _empty_module().code_for_node(node)


def _one_line(code: str) -> str:
    return re.sub(r"\s+", " ", code).strip()


def _common_length(first: str, second: str) -> int:
    """Return the length of the beginning that two texts share."""
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return sum(1 for _ in equal)


def _difference(before: str, after: str) -> str | None:
    """Return the parts of two texts that differ, with a little context."""
    if before == after:
        return None
    start = _common_length(before, after)
    rest = min(len(before), len(after)) - start
    end = min(_common_length(before[::-1], after[::-1]), rest)
    start, end = max(0, start - 30), max(0, end - 15)
    if start + end < 20:
        start = end = 0
    texts = (text[start : len(text) - end] for text in (before, after))
    return f"{'...' if start else ''}{' -> '.join(texts)}{'...' if end else ''}"


def _replaced(lines: Sequence[str], where: CodeRange, text: str) -> str:
    """Return the source with the text at a position replaced."""
    first, last = where.start.line - 1, where.end.line - 1
    head = "".join(lines[:first]) + lines[first][: where.start.column]
    return head + text + lines[last][where.end.column :] + "".join(lines[last + 1 :])
