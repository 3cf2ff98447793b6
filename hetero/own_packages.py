"""What precedes all imports: nothing hides hetero's packages, and Ctrl-C shows no traceback.

The latter for ``python -m hetero``; the signals of a program that imports it are its own.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

from hetero_command import hear_signals

_HOME = Path(__file__).parents[1]
for _name in ("devices", "scheduler"):
    _loaded = sys.modules.get(_name)
    _spec = PathFinder.find_spec(_name) if _loaded is None else None
    _file = _spec.origin if _spec is not None else getattr(_loaded, "__file__", None)
    if _file is not None and Path(_file) != _HOME / _name / "__init__.py":
        raise ImportError(
            f"hetero's package {_name!r} is hidden by {_file}, which comes first on sys.path. "
            "Rename that file or folder, or run Python from another folder.",
            name=_name,
            path=_file,
        )

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] == "hetero":  # until __main__ is found
    hear_signals()
