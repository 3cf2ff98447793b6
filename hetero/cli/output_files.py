"""Output files of commands: options, checks against overwriting inputs, and atomic writing."""

from __future__ import annotations

import errno
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from hetero.devices.model.model import Model
from hetero.scheduler.formats.publish import TEMPORARY_SUFFIX

#: Error numbers of file access -> the fix.
_FIXES: Final = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some of your quota, or write to another disk",
    errno.EFBIG: "raise the limit of file sizes (`ulimit -f`), or write to another disk",
    errno.EROFS: "choose a folder of a writable file system",
    errno.EACCES: "change its permissions, or choose another path",
    errno.EPERM: "change its permissions, or choose another path",
    errno.ENOENT: "check the path and create its folder, or choose another path",
    errno.ENOTDIR: "a part of the path is a file; choose a path of folders",
    errno.EISDIR: "pass a file instead of a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
}


def fix_of_file_error(error: OSError) -> str:
    """Return the fix of a file that cannot be read or written; empty if none is known."""
    return _FIXES.get(error.errno or 0, "")


def check_file(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Check, before any work, that an option's file can be written."""
    if path is None:
        return None
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder; expected a file; add a file name.")
    if path.exists() and not path.is_file():
        raise click.BadParameter(f"{path} is not a regular file; choose another path.")
    _check_folder(path.parent)
    return path


def check_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Check, before any work, that an option's folder is empty or can be created."""
    if path is None:
        return None
    if path.exists() and not path.is_dir():
        raise click.BadParameter(f"{path} is a file; expected a folder; choose another path.")
    if path.is_dir() and any(path.iterdir()):
        raise click.BadParameter(
            f"{path} is not empty: old and new subgraphs would be mixed; empty it, or choose "
            "another folder."
        )
    _check_folder(next(p for p in (path, *path.absolute().parents) if p.exists()))
    return path


def output_file(*names: str, **options: Any) -> Callable[..., Any]:
    """Return an option for a file to write."""
    return click.option(*names, type=click.Path(path_type=Path), callback=check_file, **options)


def refuse_overwriting(context: click.Context) -> None:
    """Refuse output files that are also an input or another output of the command."""
    outputs = _outputs(context)
    for label, path in outputs.items():
        for parameter in context.command.params:
            if parameter.callback is check_file:
                continue
            for text in _possible_paths(context.params.get(parameter.name or "")):
                if _is_same_file(path, Path(text)):
                    other = parameter.get_error_hint(context)
                    raise click.UsageError(
                        f"{label}: {path} would overwrite {other}, {text}; choose another file."
                    )
        for other, twin in outputs.items():
            if other != label and (path.absolute() == twin.absolute() or _is_same_file(path, twin)):
                raise click.UsageError(f"{label} and {other} are both {path}; use two files.")


def refuse_weights(model: Model, *more: Path) -> None:
    """Refuse output files of the command, and `more`, that hold the model's weights."""
    weights = {
        Path(constant.array.filename)
        for constant in model.constants.values()
        if isinstance(constant.array, np.memmap) and constant.array.filename
    }
    for path in (*_outputs(click.get_current_context()).values(), *more):
        for output in (path, path.with_name(path.name + ".data")):
            if any(_is_same_file(output, file) for file in weights):
                raise click.UsageError(
                    f"{output} would overwrite weights of the model; choose another file."
                )


def _outputs(context: click.Context) -> dict[str, Path]:
    """Return the output files of the command by option."""
    paths = (
        (parameter.get_error_hint(context), context.params.get(parameter.name or ""))
        for parameter in context.command.params
        if parameter.callback is check_file
    )
    return {label: path for label, path in paths if path is not None}


def write_models(folder: Path, models: Mapping[str, Model]) -> list[Path]:
    """Write ONNX files into a folder atomically: all files or, if the disk is full, none."""
    temporary = folder / f".{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
    try:
        temporary.mkdir(parents=True)
        for name, model in models.items():
            model.save(temporary / name)
        # Weights move first, so that no model lacks them.
        for file in sorted(temporary.iterdir(), key=lambda f: f.suffix != ".data"):
            file.replace(folder / file.name)
    except OSError as error:
        raise OSError(error.errno, f"cannot write models, {error.strerror}", str(folder)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [folder / name for name in models]


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise click.BadParameter(f"{folder} is a file, not a folder; choose another path.")
    if not folder.is_dir():
        raise click.BadParameter(f"the folder {folder} does not exist; create it first.")
    try:
        # Permissions say too little: root passes them, and a file system may be read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.BadParameter(
            f"no file can be created in the folder {folder}: {error.strerror}; "
            f"{fix_of_file_error(error) or 'choose another folder'}."
        ) from error


def _possible_paths(value: Any) -> Iterator[str]:
    """Yield the parts of an option's value that may be paths, including FILE of ``NAME=FILE``."""
    if isinstance(value, str | Path):
        text = str(value)
        yield text
        yield from (part for _, equals, part in (text.partition("="),) if equals)
    elif isinstance(value, Mapping):
        yield from _possible_paths(list(value.values()))
    elif isinstance(value, Iterable):
        for item in value:
            yield from _possible_paths(item)


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except (OSError, ValueError):
        return False
