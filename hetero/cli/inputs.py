"""Inputs of commands that run a model: arrays and images from files, or generated ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import click
import numpy as np
import onnx

from hetero.cli.option_types import Decorator, combine_options, name_value_pairs
from hetero.devices.errors import ExternalDataError
from hetero.devices.file_reader import open_regular, read_regular
from hetero.devices.model.light_models import PREFIX, light_model_inputs
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_proto import PROTOBUF_NBYTES, tensor_array
from hetero.devices.plugin.install_command import install_command
from hetero.measure.sample_inputs import sample_inputs

#: Suffixes of array files; a file with any other suffix is read as .npy.
ARRAY_SUFFIXES: Final = (".npy", ".npz", ".pb")
#: Suffixes of image files.
IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
#: An archive may unpack to this size, or to this multiple of its own size.
_MAX_UNPACKED_NBYTES: Final = 2**30
_MAX_UNPACK_RATIO: Final = 20


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(int(size) for size in text.split(",") if size.strip())
    if min(shape, default=0) < 0:
        raise ValueError(f"a negative size in {text}")
    return shape


def shape_option(help_text: str) -> Decorator:
    """Return a decorator that adds ``--shape``; its help starts with `help_text`."""
    return click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME=1,3,...",
        callback=name_value_pairs("NAME=1,3,224,224", _shape, of_input=True),
        help=f"{help_text} Open dimensions of the same name have the same size, by default 1.",
    )


#: Adds ``--input`` and ``--shape``, the arguments of `model_inputs`.
input_options: Final = combine_options(
    click.option(
        "--input",
        "-i",
        "inputs",
        multiple=True,
        metavar="[NAME=]FILE",
        help="A .npy, .npz or .pb file, or an image, which is resized to fit; inputs without a "
        "file are generated.",
    ),
    shape_option("Shape of a generated input."),
)


def model_inputs(
    name: str,
    model: Model,
    files: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    hidden: Collection[str] = (),
) -> dict[str, Any]:
    """Return a value for each input: from `files`, or generated.

    Optional inputs are included only if a file has them; `hidden` inputs, such as states, never.
    """
    file_values: dict[str, Any] = {}
    for text in files:
        values = _read(text, model)
        if duplicates := file_values.keys() & values.keys():
            raise click.UsageError(f"--input {text}: {_names(duplicates)} is set twice; keep one.")
        file_values |= values
    optional = {port.name for port in model.optional_inputs}
    optional_values = {port: file_values.pop(port) for port in file_values.keys() & optional}
    ports = {port.name for port in model.inputs}.difference(hidden)
    if unknown := (file_values.keys() | shapes.keys()) - ports:
        raise click.UsageError(
            f"the model has no input {_names(unknown)}; expected "
            f"{_names(ports | optional) or 'none'}."
        )
    if conflicts := file_values.keys() & shapes.keys():
        raise click.UsageError(
            f"--shape: {_names(conflicts)} also comes from a file; keep one of both."
        )
    if name.startswith(PREFIX) and not file_values and not shapes:
        return dict(light_model_inputs(model)) | optional_values
    try:
        samples = sample_inputs(model, file_values, shapes)
    except (ValueError, MemoryError) as error:
        raise click.UsageError(str(error)) from error
    return {name: value for name, value in samples.items() if name in ports} | optional_values


def input_shapes(model: Model, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a request's values for inputs with open dimensions."""
    open_ports = (port.name for port in model.inputs if port.is_tensor and not port.is_static)
    return {name: np.shape(values[name]) for name in open_ports if name in values}


def _names(names: Any) -> str:
    return ", ".join(sorted(names))


def input_files(inputs: Sequence[str], model: Model) -> dict[str, Path]:
    """Return the files that hold a single input, by input name."""
    files = (_file(text, model) for text in inputs)
    return {name: path for name, path in files if name}


def port_name(name: str, model: Model, option: str, syntax: str = "NAME=...") -> str:
    """Return the input that an option names; an empty name stands for the only input."""
    ports = [port.name for port in model.inputs]
    if not name and len(ports) != 1:
        raise click.UsageError(
            f"{option}: the model has several inputs ({', '.join(ports)}); choose one with "
            f"{syntax}."
        )
    if name and name not in ports:
        raise click.UsageError(
            f"{option}: the model has no input {name}; expected {_names(ports) or 'none'}."
        )
    return name or ports[0]


def _file(text: str, model: Model) -> tuple[str, Path]:
    """Parse ``[NAME=]FILE`` into the input and the file; the name of an archive may be empty."""
    name, equals, file = text.partition("=")
    if not equals or Path(text).exists():
        name, file = "", text
    path = Path(file)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise click.UsageError(
            f"--input {text}: {path} {problem}; expected a .npy, .npz or .pb file, or an image."
        )
    if not name and path.suffix != ".npz":
        name = port_name("", model, f"--input {text}", f"NAME={file}")
    return name, path


def _check_unpacked(text: str, path: Path) -> None:
    """Refuse a small archive that unpacks to a huge size."""
    with ZipFile(path) as archive:
        nbytes = sum(entry.file_size for entry in archive.infolist())
    if nbytes > max(_MAX_UNPACKED_NBYTES, _MAX_UNPACK_RATIO * path.stat().st_size):
        raise click.UsageError(
            f"--input {text}: {path} unpacks to {nbytes} bytes, more than {_MAX_UNPACK_RATIO} "
            "times its size; save its arrays as .npy files."
        )


def _read(text: str, model: Model) -> dict[str, Any]:
    name, path = _file(text, model)
    if is_image(path):
        image = read_image(path)
        port = next((port for port in model.inputs if port.name == name), None)
        return {name: image[None] if port and len(port.shape or ()) == 4 else image}
    try:
        if path.suffix == ".npz":
            _check_unpacked(text, path)
            with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
                keys = [name] if name else archive.files
                if missing := set(keys) - set(archive.files):
                    raise click.UsageError(
                        f"--input {text}: {path} has no {_names(missing)}; it has "
                        f"{_names(archive.files) or 'nothing'}."
                    )
                return {key: archive[key] for key in keys}
        if path.suffix == ".pb":
            tensor = onnx.load_tensor_from_string(read_regular(path, PROTOBUF_NBYTES))
            return {name: tensor_array(tensor, str(path))}
        with open_regular(path) as file:
            return {name: np.load(file, allow_pickle=False)}
    except ExternalDataError as error:
        raise click.UsageError(f"--input {text}: {error}") from error
    except click.UsageError:
        raise
    except Exception as error:  # numpy raises errors of many types for damaged files
        # numpy's own message suggests unpickling, which is not safe.
        expected = path.suffix if path.suffix in ARRAY_SUFFIXES else ".npy"
        raise click.UsageError(
            f"--input {text}: {path} is not a {expected} file of tensors: it is damaged, has "
            "another format, or contains Python objects, which are not read. Write it with "
            "numpy.save, numpy.savez or onnx.save_tensor."
        ) from error


def is_image(path: Path) -> bool:
    """Whether a file's suffix is that of an image."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def read_image(path: Path) -> np.ndarray:
    """Read an image in its display orientation: uint8 (height, width, 3), in RGB order."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise click.UsageError(
            f"--input {path}: reading images needs Pillow, which is not installed: "
            f"{install_command('pictures')}; or pass a .npy file."
        ) from error
    try:
        with open_regular(path) as file, Image.open(file) as image:
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise click.UsageError(f"--input {path}: Pillow cannot read the image: {error}") from error
