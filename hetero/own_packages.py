"""Checks first of all that no module of the user's hides a package that hetero imports."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

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
