"""Names and prose in plain technical English: shares of odd names, first lines and phrases.

Nine well-known projects (LitServe, httpx, sqlite-utils, onnx-ir, numcodecs, click, rich, fsspec,
ray.serve) have 0.0 to 0.2 % of such names and first lines, and 1 to 6 such phrases per 1,000 lines
of prose. The check finds candidates; a rewrite should help a reader, not only the check.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
#: Limits of each folder, and of the documents together.
NAMES_PERCENT, FIRST_LINES_PERCENT, PHRASES_PER_1000_LINES = 0.4, 0.3, 8.0
PARTS = ("hetero", "scheduler", "devices", "benchmarks", "tests", "documents")
#: Limit of words in the name of a test, after `test_`.
TEST_NAME_WORDS = 10
TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
#: Names that name nothing: a participle or adverb without its noun.
NAMELESS = re.compile(
    r"_*(?:found|given|told|known|made|wanted|held|kept|taken|moved|asked|said|begun|gone|opened"
    r"|drawn|planned|sent|got|had|met|heard|lost|born|shown|brought|counted|joined|named|tried"
    r"|passed|fired|ended|started|taken|thrown|written|chosen|come|fallen|meant|noted|owned"
    r"|reached|refused|apart|anew|there|here|such)_*"
)
FIRST_LINE = re.compile(
    r"^(?:Return |Yield |Say |Tell )?"
    r"(?:what|who|whoever|whom|whose|where|how|that which|those that)\b",
    re.IGNORECASE,
)
#: A string, or a comment outside strings; module `tokenize` would take twenty times as long.
STRING_OR_COMMENT = re.compile(
    r"""
    \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3} | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
    | (?P<comment>\#[^\n]*)
    """,
    re.DOTALL | re.VERBOSE,
)
#: Kind of phrase -> its pattern.
PHRASES = {
    "clause as a noun": r"\b[Ww]hat (?!happens\b|is wrong\b|if\b|to do\b|this\b)\w+",
    "who for a caller": (
        r"\b(?:[Ww]hoever|[Tt]hose who|"
        r"[Ww]ho (?:asks?|asked|reads?|waits?|has|may|gets?|cancels?|holds?|steps?|else))\b"
    ),
    "personified": r"\b(?:is|are|was|were|be) (?:told|said)\b|\b(?:said|told|tells?|says?) of\b",
    "done again": r"\banew\b|\bmade again\b",
    "vague amount": r"\bso (?:many|much|large|long|few)\b(?! (?:that|as)\b)",
    "except": r"\bbut for\b|\bbesides?\b",
    "continue": r"\b(?:go|goes|going|went|gone) on\b",
    "result": r"\b(?:comes?|came|becomes?|became) of\b",
    "causative": r"(?m)^\s*Have |\b[Hh]ave (?:a|the|others|devices|nothing) \w+ (?!been\b)",
    "possession": r"\b(?:is|are|be|was|were) had\b",
    "release": r"\b[Ll]ets? go\b",
    "existence": r"\b(?:is|are|was|were) (?:not )?there\b",
    "otherwise": r"[;,] else\b",
    "unchanged": r"\bas (?:it|they) (?:is|are|was|were)\b",
    "pronoun without a noun": (
        r"(?m)(?:^|[.;:] )(?:One|Those|That|This|It|They) (?:that|which|is that|are those)\b"
    ),
}


class Text(NamedTuple):
    """A docstring, a comment, or a document."""

    path: Path
    line: int
    content: str
    is_docstring: bool


class Measures(NamedTuple):
    """Findings in a part of the project, and the totals of which they are shares."""

    names: list[str]
    first_lines: list[str]
    phrases: list[str]
    name_count: int
    docstring_count: int
    line_count: int


def sources(part: str) -> list[Path]:
    """Return the files of a part; not this one, which lists the patterns."""
    if part == "documents":
        return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
    links = [folder for folder in (ROOT / part).iterdir() if folder.is_symlink()]
    return [
        path
        for path in sorted((ROOT / part).rglob("*.py"))
        if path != Path(__file__) and not any(path.is_relative_to(folder) for folder in links)
    ]


def assigned_names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def texts_of(path: Path, source: str, nodes: list[ast.AST]) -> Iterator[Text]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield Text(path, getattr(node, "lineno", 1), docstring, True)
    for token in STRING_OR_COMMENT.finditer(source):
        if token["comment"] is not None:
            line = source.count("\n", 0, token.start()) + 1
            yield Text(path, line, token["comment"].lstrip("#: "), False)


def phrases_of(texts: list[Text]) -> Iterator[str]:
    """Yield the odd phrases in the texts of a file, after one search for each kind."""
    content = "\n".join(text.content for text in texts)
    patterns = {kind: pattern for kind, pattern in PHRASES.items() if re.search(pattern, content)}
    for text in texts if patterns else ():
        for kind, pattern in patterns.items():
            for match in re.finditer(pattern, text.content):
                excerpt = text.content[max(0, match.start() - 40) : match.end() + 40]
                yield f"{text.path.relative_to(ROOT)}:{text.line}: {kind}: {excerpt!r}"


def measure(paths: list[Path]) -> Measures:
    names: list[str] = []
    texts: list[Text] = []
    phrases: list[str] = []
    name_count = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            nodes = list(ast.walk(ast.parse(source)))
            for line, name in assigned_names(nodes):
                name_count += 1
                if NAMELESS.fullmatch(name):
                    names.append(f"{path.relative_to(ROOT)}:{line}: name {name}")
            texts_of_file = list(texts_of(path, source, nodes))
        else:
            texts_of_file = [Text(path, 1, re.sub(r"(?s)```.*?```", "", source), False)]
        texts += texts_of_file
        phrases += phrases_of(texts_of_file)
    docstrings = [text for text in texts if text.is_docstring]
    return Measures(
        names,
        [
            f"{text.path.relative_to(ROOT)}:{text.line}: {text.content.splitlines()[0]}"
            for text in docstrings
            if FIRST_LINE.match(text.content)
        ],
        phrases,
        name_count,
        len(docstrings),
        sum(text.content.count("\n") + 1 for text in texts),
    )


@pytest.mark.parametrize(
    "part", [pytest.param(p, marks=pytest.mark.slow) if p == "tests" else p for p in PARTS]
)
def test_part_reads_as_plain_english(part):
    measures = measure(sources(part))
    shares = {
        "names": (measures.names, 100, measures.name_count, NAMES_PERCENT),
        "first lines": (
            measures.first_lines,
            100,
            measures.docstring_count,
            FIRST_LINES_PERCENT,
        ),
        "phrases": (measures.phrases, 1000, measures.line_count, PHRASES_PER_1000_LINES),
    }
    for kind, (places, scale, count, limit) in shares.items():
        share = scale * len(places) / max(count, 1)
        assert share <= limit, f"{kind}: {share:.1f}, at most {limit}:\n" + "\n".join(places)


@pytest.mark.parametrize("part", [part for part in PARTS if part != "documents"])
def test_formatter_is_never_switched_off(part):
    marks = re.compile(r"#\s*fmt:\s*(?:skip|off)")
    assert [str(p) for p in sources(part) if marks.search(p.read_text(encoding="utf-8"))] == []


def test_test_names_are_short():
    names = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("tests")
        for name in re.findall(
            r"(?m)^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8")
        )
        if name.count("_") > TEST_NAME_WORDS
    ]
    assert names == []
