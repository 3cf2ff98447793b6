"""Files that commands write: never one that they read, and whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from hetero.devices.model.model import Model
from hetero.scheduler.formats.publish import TEMPORARY_SUFFIX


def check_file(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Check, before any work is done, that an option's file can be written."""
    if path is None:
        return None
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder; name a file.")
    if path.exists() and not path.is_file():
        raise click.BadParameter(f"{path} is not a regular file; name another.")
    _check_folder(path.parent)
    return path


def check_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Check, before any work is done, that an option's folder is empty or can be made."""
    if path is None:
        return None
    if path.exists() and not path.is_dir():
        raise click.BadParameter(f"{path} is a file; name a folder.")
    if path.is_dir() and any(path.iterdir()):
        raise click.BadParameter(
            f"{path} is not empty: files of another cut would stay among these; empty it, or name "
            "another."
        )
    _check_folder(next(p for p in (path, *path.absolute().parents) if p.exists()))
    return path


def output_file(*names: str, **options: Any) -> Callable[..., Any]:
    """Return an option that names a file to write."""
    return click.option(*names, type=click.Path(path_type=Path), callback=check_file, **options)


def refuse_overwriting(context: click.Context) -> None:
    """Refuse outputs that are an input of the command, or one another, naming both options."""
    outputs = _outputs(context)
    for label, path in outputs.items():
        for parameter in context.command.params:
            if parameter.callback is check_file:
                continue
            for text in _texts(context.params.get(parameter.name or "")):
                if _same(path, Path(text)):
                    other = parameter.get_error_hint(context)
                    raise click.UsageError(f"{label}: {path} is {other}'s {text}; name another.")
        for other, twin in outputs.items():
            if other != label and (path.absolute() == twin.absolute() or _same(path, twin)):
                raise click.UsageError(f"{label} and {other} are both {path}; name two files.")


def refuse_weights(model: Model, *more: Path) -> None:
    """Refuse outputs of the command, and `more`, that are files of the model's own weights."""
    weights = {
        Path(constant.array.filename)
        for constant in model.constants.values()
        if isinstance(constant.array, np.memmap) and constant.array.filename
    }
    for path in (*_outputs(click.get_current_context()).values(), *more):
        for written in (path, path.with_name(path.name + ".data")):
            if any(_same(written, file) for file in weights):
                raise click.UsageError(f"{written} holds weights of the model; name another file.")


def _outputs(context: click.Context) -> dict[str, Path]:
    """Return the files that the command is to write, by their options."""
    found = (
        (parameter.get_error_hint(context), context.params.get(parameter.name or ""))
        for parameter in context.command.params
        if parameter.callback is check_file
    )
    return {label: path for label, path in found if path is not None}


def write_models(folder: Path, models: Mapping[str, Model]) -> list[Path]:
    """Write ONNX files into a folder: each appears whole, and none if there is no room for all."""
    temporary = folder / f".{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
    try:
        temporary.mkdir(parents=True)
        for name, model in models.items():
            model.save(temporary / name)
        # Weights first: a model that is there has them.
        for file in sorted(temporary.iterdir(), key=lambda f: f.suffix != ".data"):
            file.replace(folder / file.name)
    except OSError as error:
        raise OSError(
            error.errno, f"models cannot be written there, {error.strerror}", str(folder)
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [folder / name for name in models]


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise click.BadParameter(f"the folder {folder} does not exist; make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.BadParameter(f"nothing may be written into the folder {folder}.")


def _texts(value: Any) -> Iterator[str]:
    """Yield what may be a file's name in an option's value: ``NAME=FILE`` has one too."""
    if isinstance(value, str | Path):
        text = str(value)
        yield text
        yield from (part for _, equals, part in (text.partition("="),) if equals)
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Iterable):
        for item in value:
            yield from _texts(item)


def _same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except (OSError, ValueError):
        return False
