"""Where served models come from: one file, or a folder of models with their options beside them.

::

    models/
      classifier.onnx
      detector/
        hetero.yaml            # device: HETERO:ORT,CPU   config: {AUTO_BATCH_SIZE: 8}
        1/model.onnx           # a version each
        2/model.hetero
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

from hetero.apps.generate.ports import published_folder
from hetero.apps.serve.repository import ModelSource
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import ArgumentError, ModelError, ModelNotFoundError

#: The file with a model's options.
OPTIONS_FILE: Final = "hetero.yaml"
#: Names of the file that is the model, where a folder has several.
_USUAL: Final = ("model.onnx", "model.hetero")
_SUFFIXES: Final = (".onnx", ".hetero")


class ModelOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model of a repository is compiled.

    `device`: the device string; empty takes the blob's own, or every device.
    `config`, `affinity`: options of `hetero.Core.compile_model`, and pins.
    `versions`: those that are served.
    `decoder`: whether it is read by `hetero.read_decoder`, to generate texts.
    """

    device: str = ""
    config: dict[str, Any] = {}
    affinity: dict[str, str] = {}
    versions: Literal["all", "latest"] | list[str | int] = "all"
    decoder: bool = False


#: Compiles or imports a file with its options.
Load = Callable[[Path, ModelOptions], CompiledModel]


def folder_sources(folder: Path, usual: ModelOptions, load: Load) -> list[ModelSource]:
    """Return what a repository's folder holds now; `usual` where a model has no options of its own.

    A model whose options cannot be read is there with that as the reason why it is not served.
    """
    found = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_file() and entry.suffix in _SUFFIXES:
            found.append(_source(entry.stem, "1", entry, usual, load))
        elif entry.is_dir():
            found += _of_model(entry, usual, load)
    return found


def _of_model(folder: Path, usual: ModelOptions, load: Load) -> Iterator[ModelSource]:
    name = folder.name
    try:
        options = read_options(folder / OPTIONS_FILE, usual)
        folders = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isascii()]
        numbered = [entry for entry in folders if entry.name.isdecimal()]
        versions = {entry.name: entry for entry in sorted(numbered, key=lambda e: int(e.name))}
        if not versions:
            yield _source(name, "1", _model_file(folder), options, load)
            return
        for version in _chosen(name, versions, options):
            yield _source(name, version, _model_file(versions[version]), options, load)
    except (ArgumentError, ModelError, OSError) as error:
        yield ModelSource(name, "1", _raising(error), f"{error}")


def _chosen(name: str, versions: Mapping[str, Path], options: ModelOptions) -> list[str]:
    wanted = options.versions
    if wanted == "all":
        return list(versions)
    if wanted == "latest":
        return list(versions)[-1:]
    chosen = [*map(str, wanted)]
    if absent := [version for version in chosen if version not in versions]:
        raise ArgumentError(
            f"{name}/{OPTIONS_FILE} names version {absent[0]}; there are {', '.join(versions)}."
        )
    return chosen


def _model_file(folder: Path) -> Path:
    """Return the file that is the model."""
    for name in _USUAL:
        if (folder / name).is_file():
            return folder / name
    files = [entry for entry in folder.iterdir() if entry.suffix in _SUFFIXES]
    if len(files) != 1:
        raise ModelNotFoundError(
            f"{folder}: {len(files)} files of a model; wanted one .onnx or .hetero, or {_USUAL[0]}."
        )
    return files[0]


def read_options(path: Path, usual: ModelOptions) -> ModelOptions:
    """Return a model's options; the usual ones where there is no such file."""
    if not path.is_file():
        return usual
    try:
        told = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} is not YAML: {error}") from error
    try:
        options = msgspec.convert(told, ModelOptions)
    except msgspec.ValidationError as error:
        known = ", ".join(ModelOptions.__struct_fields__)
        raise ArgumentError(f"{path}: {error}. Its keys are {known}.") from error
    given = {name: getattr(options, name) for name in told}
    return msgspec.structs.replace(usual, **given | {"config": usual.config | options.config})


def _source(name: str, version: str, path: Path, options: ModelOptions, load: Load) -> ModelSource:
    status = path.stat()
    stamp = (path, status.st_mtime_ns, status.st_size, status.st_ino, options)
    return ModelSource(name, version, lambda: load(path, options), stamp, published_folder(path))


def _raising(error: Exception) -> Callable[[], CompiledModel]:
    def load() -> CompiledModel:
        raise error

    return load
