"""Libraries that are no working plug-in execution providers, compiled from a few lines of C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

#: The entry point of a plug-in provider: its arguments, and the return of an error as OrtStatus.
#: OrtApi begins with CreateStatus: onnxruntime_c_api.h.
_ENTRY: Final = """
#include <stdint.h>
#include <stdlib.h>
#include <stddef.h>
struct Base { void **(*get_api)(uint32_t); const char *(*get_version)(void); };
typedef void *(*CreateStatus)(int code, const char *message);
void *CreateEpFactories(const char *name, struct Base *base, void *logger, void **factories,
                        size_t most, size_t *count) { %s }
void *ReleaseEpFactory(void *factory) { return 0; }
"""
SOURCES: Final = {
    "empty": "int unrelated;",
    "aborts_when_loaded": "#include <stdlib.h>\n"
    "__attribute__((constructor)) void start(void) { abort(); }",
    "aborts_when_registered": _ENTRY % "abort();",
    "segfaults_when_registered": _ENTRY % "*(volatile int *)8 = 1; return 0;",
    "exits_when_registered": _ENTRY % "exit(0);",
    "no_factory": _ENTRY % "*count = 0; return 0;",
    "newer_abi": _ENTRY
    % 'return base->get_api(999) ? 0 : ((CreateStatus)base->get_api(1)[0])(1, "needs API 999");',
    "foreign_factory": _ENTRY
    % "static void *table[64]; factories[0] = table; *count = 1; return 0;",
}


def compile_library(name: str, folder: Path) -> Path:
    """Compile one of `SOURCES`; skip the test without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = folder / f"lib{name}.so"
    command = [compiler, "-shared", "-fPIC", "-w", "-o", path, "-x", "c", "-"]
    subprocess.run(command, input=SOURCES[name].encode(), check=True, timeout=60)
    return path
