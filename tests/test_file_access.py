"""Files and documents from outside are read by one module, which bounds them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.rows import for_each_row

ROOT = Path(__file__).parents[1]
READER = "devices/file_reader.py"
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for package in ("devices", "scheduler", "hetero")
    for path in (ROOT / package).rglob("*.py")
    if path != ROOT / READER
}
#: Calls that read a file or parse a document, by the text of the called expression.
READS = re.compile(
    r"(io\.|os\.)?open|Image\.open|json\.loads?|orjson\.loads|pickle\.loads?|marshal\.loads?"
    r"|(msgspec\.)?(json|yaml|toml|msgpack)\.decode|msgpack\.unpackb?|tomllib\.loads?|yaml\.\w+"
    r"|np\.(load|loadtxt|genfromtxt|fromfile|memmap)|onnx\.load\w*|mmap\.mmap|ZipFile|csv\.reader"
    r"|.*\.from_file|decode|.*\.(read_text|read_bytes|open)"
)
#: File -> the calls in it that do not use the reader, and the reason.
ALLOWED = {
    "devices/conformance/onnx_suite.py": (("onnx.load",), "files of the onnx package"),
    "devices/model/light_models.py": (("onnx.load_tensor_from_string",), "bytes of the reader"),
    "devices/model/tensor_proto.py": (("np.memmap",), "maps weights after checks of its own"),
    "devices/plugin/crash_marks.py": (("os.open",), "opens locks, whose contents are not read"),
    "devices/plugin/install_command.py": (("json.loads",), "a record of the package installer"),
    "devices/plugin/node_queries.py": (("msgpack.unpackb",), "messages of its own processes"),
    "hetero/apps/generate/decoder_ports.py": (("msgspec.json.decode",), "typed metadata"),
    "hetero/apps/serve/proto_file.py": ((".read_bytes",), "a file of this package"),
    "hetero/apps/serve/shared_memory.py": (("os.open",), "writes, after checks of its own"),
    "hetero/cache/check.py": (("json.loads",), "text of a property"),
    "hetero/cache/folder.py": (("os.open",), "opens locks, whose contents are not read"),
    "hetero/cli/main.py": (("os.open",), "/dev/null"),
    "hetero/cli/inputs.py": (
        ("ZipFile", "onnx.load_tensor_from_string", "Image.open", "np.load"),
        "parse files that the reader has opened",
    ),
    "hetero/cli/terminal.py": (("json.loads",), "JSON of its own"),
    "hetero/comparison/compare.py": (("msgspec.json.decode",), "JSON of its own"),
    "hetero/measure/sample_inputs.py": (("msgspec.json.decode",), "typed metadata"),
    "hetero/report/html_page.py": ((".read_text",), "a file of this package"),
    "hetero/verify/verdict.py": (("msgspec.json.decode",), "JSON of its own"),
    "hetero/verify/verdict_store.py": (("msgspec.json.decode",), "typed JSON of a cache entry"),
    "scheduler/channels/envelope.py": (("decode",), "typed msgpack"),
    "scheduler/channels/shared_memory.py": (("os.open", "mmap.mmap"), "checks of its own"),
    "scheduler/formats/blob_file.py": (("mmap.mmap",), "maps a file that the reader has opened"),
    "scheduler/formats/publish.py": (("os.open", "open"), "writes"),
    "scheduler/formats/weightless.py": (("mmap.mmap",), "anonymous memory"),
    "scheduler/processes/client_guard.py": ((".read_text",), "a file of /proc"),
    "scheduler/ray/local_cluster.py": ((".read_text",), "a file of /proc"),
    "scheduler/ray/pool.py": (("decode",), "written by hetero in the cluster's store"),
    "scheduler/types/plan.py": (("decode",), "part of a blob"),
}


#: File -> its regular expression that is a variable, whose values are written in the program.
VARIABLE_PATTERNS = {
    "devices/ort/query.py": "pattern",
    "devices/plugin/properties.py": "self.pattern",
    "hetero/apps/serve/routes.py": "pattern",
}


def call_nodes(source: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


@cache
def calls(source: str) -> list[tuple[str, int]]:
    """Return the calls in a source that read a file or parse a document, with their lines."""
    return list(_calls(source))


def _calls(source: str) -> Iterator[tuple[str, int]]:
    for node in call_nodes(source):
        if not READS.fullmatch(_dotted_name(node.func)) or _is_method_of_ours(node):
            continue
        name = ast.unparse(node.func)
        if "/proc/" in name or any("/proc/" in ast.unparse(value) for value in node.args):
            continue  # written by the kernel
        yield name, node.lineno


def _dotted_name(node: ast.expr) -> str:
    """Return the text of an expression, in which "_" replaces all but names and attributes."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "_"


def _is_method_of_ours(node: ast.Call) -> bool:
    """Whether a call of a method cannot be one of `pathlib.Path` that reads a file."""
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in ("read_text", "read_bytes"):  # those of `FileReader` have a path
        return bool(node.args)
    if node.func.attr == "open" and ast.unparse(node.func.value) not in ("io", "os", "Image"):
        mode = node.args[0] if node.args else ast.Constant("r")
        return not isinstance(mode, ast.Constant) or mode.value[0] in "wax"
    return False


def is_allowed(name: str, call: str) -> bool:
    allowed, _ = ALLOWED.get(name, ((), ""))
    return any(
        call == pattern or (pattern[0] == "." and call.endswith(pattern)) for pattern in allowed
    )


def test_files_are_read_by_one_module():
    violations = {
        f"{name}:{line}": call
        for name, source in SOURCES.items()
        for call, line in calls(source)
        if not is_allowed(name, call)
    }
    assert violations == {}


@for_each_row("name", ALLOWED)
def test_every_exception_is_needed(name):
    called = [call for call, _ in calls(SOURCES[name])]
    unused = [
        pattern
        for pattern in ALLOWED[name][0]
        if not any(call.endswith(pattern) for call in called)
    ]
    assert unused == []


@pytest.mark.parametrize(
    "call",
    [
        "open(path)",
        "path.open()",
        "path.open('rb')",
        "path.read_text(encoding='utf-8')",
        "folder.joinpath(name).read_bytes()",
        "json.loads(text)",
        "msgspec.json.decode(data)",
        "yaml.safe_load(text)",
        "tokenizers.Tokenizer.from_file(path)",
    ],
)
def test_reads_are_recognised(call):
    assert calls(call)


@pytest.mark.parametrize(
    "call", ["_READER.read_text(path)", "path.open('wb')", "device.open(stages)", "text.decode()"]
)
def test_other_calls_are_not_reads(call):
    assert not calls(call)


def test_regular_expressions_are_not_built_from_outside_text():
    """A pattern is a constant, or is made of constants of the module."""
    violations = {}
    for name, source in SOURCES.items():
        if not re.search(r"\bre\.\w+\(", source):
            continue
        for node in call_nodes(source):
            function = _dotted_name(node.func)
            if not re.fullmatch(r"re\.\w+", function) or function in ("re.escape", "re.error"):
                continue
            parts = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.Name)]
            if any(not (part.id.isupper() or part.id in ("re", "map")) for part in parts):
                violations[name] = ast.unparse(node.args[0])
    assert violations == VARIABLE_PATTERNS
