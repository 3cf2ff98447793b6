"""Inputs for ``run`` and ``bench``: from files, or generated to fit the model's ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import click
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from devices.light_models import PREFIX, light_model_inputs
from devices.model import Model
from devices.tensor_spec import TensorSpec

#: Suffixes of the files that `--input` reads; a file with another one is read as .npy.
KINDS: Final = (".npy", ".npz", ".pb")


def model_inputs(
    name: str, model: Model, files: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Return a value for each input: from `files` where they have it, generated otherwise."""
    given: dict[str, Any] = {}
    for text in files:
        given |= _read(text, model)
    ports = {port.name for port in model.inputs}
    if extra := (given.keys() | shapes.keys()) - ports:
        raise click.UsageError(
            f"the model has no input {', '.join(sorted(extra))}; it has {', '.join(sorted(ports))}."
        )
    if name.startswith(PREFIX) and not given and not shapes:
        return dict(light_model_inputs(model))
    rng = np.random.default_rng(0)
    return {
        port.name: given[port.name]
        if port.name in given
        else generate(port, shapes.get(port.name), rng)
        for port in model.inputs
    }


def generate(port: TensorSpec, shape: tuple[int, ...] | None, rng: np.random.Generator) -> Any:
    """Return a value that fits a port; open dimensions are 1 unless `shape` says otherwise."""
    if not port.is_tensor or port.dtype is None:
        raise click.UsageError(
            f"input {port.name!r} is a {port.type or 'value of unknown type'}; the command line "
            "makes and reads tensors only."
        )
    if shape is None:
        shape = tuple(d if isinstance(d, int) else 1 for d in port.shape or ())
    if not port.accepts(shape):
        raise click.UsageError(f"input {port.name!r} is {port}; --shape gives {list(shape)}.")
    if port.dtype == object:
        return np.full(shape, "a", dtype=object)
    if port.dtype.kind == "f":
        return rng.standard_normal(shape).astype(port.dtype)
    # 0 and 1 are valid tokens, masks, flags and indices in nearly every model.
    return rng.integers(0, 2, shape).astype(port.dtype)


def parse_shapes(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Read ``--shape NAME:1,3,224,224`` options."""
    shapes = {}
    for part in value:
        name, colon, sizes = part.rpartition(":")
        try:
            shapes[name] = tuple(int(s) for s in sizes.split(",") if s.strip())
        except ValueError:
            colon = ""
        if not colon or any(size < 0 for size in shapes.get(name, ())):
            raise click.BadParameter(f"{part!r}: wanted NAME:1,3,224,224")
    return shapes


def _read(text: str, model: Model) -> dict[str, Any]:
    name, equals, file = text.partition("=")
    if not equals or Path(text).exists():
        name, file = "", text
    path = Path(file)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise click.UsageError(f"--input {text}: {path} {what}; give a .npy, .npz or .pb file.")
    if not name and path.suffix != ".npz":
        if len(model.inputs) != 1:
            ports = ", ".join(port.name for port in model.inputs)
            raise click.UsageError(f"--input {text}: say which of {ports} it is, as NAME={file}.")
        name = model.inputs[0].name
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {key: archive[key] for key in archive.files}
        if path.suffix == ".pb":
            return {name: numpy_helper.to_array(onnx.load_tensor(str(path)))}
        return {name: np.load(path, allow_pickle=False)}
    except (ValueError, OSError, EOFError, BadZipFile, DecodeError) as error:
        # numpy's own message tells how to unpickle what it found, which nobody should.
        raise click.UsageError(
            f"--input {text}: {path} is no {path.suffix if path.suffix in KINDS else '.npy'} file "
            "of tensors: damaged, of another kind, or with Python objects, which are not read. "
            "Write one with numpy.save, numpy.savez or onnx.save_tensor."
        ) from error
