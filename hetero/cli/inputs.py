"""Inputs of commands that run a model: arrays and images from files, or generated ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import click
import numpy as np
import onnx

from hetero.cli.option_types import Decorator, pairs, together
from hetero.devices.errors import ExternalDataError
from hetero.devices.model.light_models import PREFIX, light_model_inputs
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_proto import tensor_array
from hetero.measure.sample_inputs import sample_inputs

#: Suffixes of the files that `--input` reads; a file with another one is read as .npy.
KINDS: Final = (".npy", ".npz", ".pb")
#: Suffixes of files that are read as pictures.
IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
#: What an archive may unpack to: so many bytes, and beyond that so many times its own size.
_UNPACKED_NBYTES: Final = 2**30
_UNPACKED: Final = 20


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(int(size) for size in text.split(",") if size.strip())
    if min(shape, default=0) < 0:
        raise ValueError(f"a negative size in {text}")
    return shape


def shape_option(help_text: str) -> Decorator:
    """Return what adds ``--shape`` with this first sentence of its help."""
    return click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME=1,3,...",
        callback=pairs("NAME=1,3,224,224", _shape, of_input=True),
        help=f"{help_text} Inputs with the same open dimensions get the same sizes; dimensions "
        "left open are 1.",
    )


#: Adds ``--input`` and ``--shape``; `model_inputs` takes what they give.
input_options: Final = together(
    click.option(
        "--input",
        "-i",
        "inputs",
        multiple=True,
        metavar="[NAME=]FILE",
        help="A .npy, .npz or .pb file, or a picture, which is resized to fit; inputs without "
        "one are generated.",
    ),
    shape_option("The shape of a generated input."),
)


def model_inputs(
    name: str,
    model: Model,
    files: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    hidden: Collection[str] = (),
) -> dict[str, Any]:
    """Return a value for each input: from `files` where they have it, generated otherwise.

    Inputs that have a default are among them where a file has them; those that are `hidden`, as
    states are, never.
    """
    given: dict[str, Any] = {}
    for text in files:
        found = _read(text, model)
        if twice := given.keys() & found.keys():
            raise click.UsageError(f"--input {text}: {_names(twice)} is given twice; keep one.")
        given |= found
    optional = {port.name for port in model.optional_inputs}
    overridden = {port: given.pop(port) for port in given.keys() & optional}
    ports = {port.name for port in model.inputs}.difference(hidden)
    if extra := (given.keys() | shapes.keys()) - ports:
        raise click.UsageError(
            f"the model has no input {_names(extra)}; it has {_names(ports | optional) or 'none'}."
        )
    if both := given.keys() & shapes.keys():
        raise click.UsageError(f"--shape: {_names(both)} comes from a file; leave one out.")
    if name.startswith(PREFIX) and not given and not shapes:
        return dict(light_model_inputs(model)) | overridden
    try:
        made = sample_inputs(model, given, shapes)
    except (ValueError, MemoryError) as error:
        raise click.UsageError(str(error)) from error
    return {name: value for name, value in made.items() if name in ports} | overridden


def _names(names: Any) -> str:
    return ", ".join(sorted(names))


def given_files(inputs: Sequence[str], model: Model) -> dict[str, Path]:
    """Return input name -> file, for files of one input each."""
    found = (_file(text, model) for text in inputs)
    return {name: path for name, path in found if name}


def port_name(name: str, model: Model, option: str, written: str = "NAME=...") -> str:
    """Return an input's name as an option gives it; the empty name is that of the only input."""
    ports = [port.name for port in model.inputs]
    if not name and len(ports) != 1:
        raise click.UsageError(f"{option}: say which of {', '.join(ports)} it is, as {written}.")
    if name and name not in ports:
        raise click.UsageError(
            f"{option}: the model has no input {name}; it has {_names(ports) or 'none'}."
        )
    return name or ports[0]


def _file(text: str, model: Model) -> tuple[str, Path]:
    """Return the input and the file that ``[NAME=]FILE`` means; an archive may have no name."""
    name, equals, file = text.partition("=")
    if not equals or Path(text).exists():
        name, file = "", text
    path = Path(file)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise click.UsageError(
            f"--input {text}: {path} {what}; give a .npy, .npz or .pb file, or a picture."
        )
    if not name and path.suffix != ".npz":
        name = port_name("", model, f"--input {text}", f"NAME={file}")
    return name, path


def _check_unpacked(text: str, path: Path) -> None:
    """Refuse an archive of a few bytes that unpacks to many."""
    with ZipFile(path) as archive:
        nbytes = sum(entry.file_size for entry in archive.infolist())
    if nbytes > max(_UNPACKED_NBYTES, _UNPACKED * path.stat().st_size):
        raise click.UsageError(
            f"--input {text}: {path} unpacks to {nbytes} bytes, {_UNPACKED} times its size and "
            "more; save its arrays as .npy files."
        )


def _read(text: str, model: Model) -> dict[str, Any]:
    name, path = _file(text, model)
    if is_picture(path):
        picture = read_picture(path)
        port = next((port for port in model.inputs if port.name == name), None)
        return {name: picture[None] if port and len(port.shape or ()) == 4 else picture}
    try:
        if path.suffix == ".npz":
            _check_unpacked(text, path)
            with np.load(path, allow_pickle=False) as archive:
                wanted = [name] if name else archive.files
                if missing := set(wanted) - set(archive.files):
                    raise click.UsageError(
                        f"--input {text}: {path} has no {_names(missing)}; it has "
                        f"{_names(archive.files) or 'nothing'}."
                    )
                return {key: archive[key] for key in wanted}
        if path.suffix == ".pb":
            return {name: tensor_array(onnx.load_tensor(str(path)), str(path))}
        return {name: np.load(path, allow_pickle=False)}
    except ExternalDataError as error:
        raise click.UsageError(f"--input {text}: {error}") from error
    except click.UsageError:
        raise
    except Exception as error:  # numpy and its archives raise what they meet
        # numpy's own message says how to unpickle what it found, which is not safe.
        raise click.UsageError(
            f"--input {text}: {path} is no {path.suffix if path.suffix in KINDS else '.npy'} file "
            "of tensors: damaged, of another kind, or with Python objects, which are not read. "
            "Write one with numpy.save, numpy.savez or onnx.save_tensor."
        ) from error


def is_picture(path: Path) -> bool:
    """Whether a file is one by its name."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def read_picture(path: Path) -> np.ndarray:
    """Return a picture as it is to be seen: bytes (height, width, 3), red first."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise click.UsageError(
            f"--input {path}: pictures are read by Pillow, which is not installed: "
            "pip install 'hetero[pictures]'. Or give a .npy file."
        ) from error
    try:
        with Image.open(path) as file:
            return np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise click.UsageError(f"--input {path}: not a picture for Pillow: {error}") from error
