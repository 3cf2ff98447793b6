"""A folder of models with their options.

::

    models/
      classifier.onnx
      detector_and_classifier/
        hetero.yaml            # join: [detector.onnx, classifier.onnx]   wires: {boxes: rois}
        detector.onnx
        classifier.onnx
      detector/
        hetero.yaml            # device: HETERO:ORT,CPU   config: {AUTO_BATCH_SIZE: 8}
        1/model.onnx           # a folder for each version
        2/model.hetero
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from hetero.apps.serve.repository import ModelSource
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import ArgumentError, ModelError, ModelNotFoundError
from hetero.devices.file_reader import FileReader
from hetero.devices.model.reader import published_folder

#: The file with a model's options.
OPTIONS_FILE: Final = "hetero.yaml"
#: Names of the model's file if its folder has several.
_MODEL_NAMES: Final = ("model.onnx", "model.hetero")
_SUFFIXES: Final = (".onnx", ".hetero")


class ModelOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a model in a folder.

    `device`: the device string; empty takes the blob's own, or every device.
    `config`, `affinity`: options of `hetero.Core.compile_model`, and pins.
    `versions`: the served versions.
    `decoder`: whether `hetero.read_decoder` reads it, to generate text.
    `join`: files of models in the folder that are served as one, in the order in which they run.
    `wires`: connects their outputs to inputs of later ones; see `hetero.Core.read_model`.
    """

    device: str = ""
    config: dict[str, Any] = {}
    affinity: dict[str, str] = {}
    versions: Literal["all", "latest"] | list[str | int] = "all"
    decoder: bool = False
    join: list[str] = []
    wires: dict[str, str | list[str]] = {}


_READER: Final = FileReader(
    "options file",
    ArgumentError,
    f"Its keys are {', '.join(ModelOptions.__struct_fields__)}.",
    max_nbytes=2**20,
)
#: Compiles or imports a file with its options.
Load = Callable[[Path, ModelOptions], CompiledModel]


def folder_sources(folder: Path, defaults: ModelOptions, load: Load) -> list[ModelSource]:
    """Return the models in a folder; `defaults` are the options of those without their own.

    A model whose options cannot be read is listed with the reason.
    """
    sources = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_file() and entry.suffix in _SUFFIXES:
            sources.append(_source(entry.stem, "1", entry, defaults, load))
        elif entry.is_dir():
            sources += _model_sources(entry, defaults, load)
    return sources


def _model_sources(folder: Path, defaults: ModelOptions, load: Load) -> Iterator[ModelSource]:
    """Yield the served versions of a model with a folder of its own."""
    name = folder.name
    try:
        options = read_options(folder / OPTIONS_FILE, defaults)
        if options.join:
            yield _joined_source(name, folder, options, load)
            return
        folders = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isascii()]
        numbered = [entry for entry in folders if entry.name.isdecimal()]
        versions = {entry.name: entry for entry in sorted(numbered, key=lambda e: int(e.name))}
        if not versions:
            yield _source(name, "1", _model_file(folder), options, load)
            return
        for version in _served_versions(name, versions, options):
            yield _source(name, version, _model_file(versions[version]), options, load)
    except (ArgumentError, ModelError, OSError) as error:
        yield ModelSource(name, "1", _raise_later(error), f"{error}")


def _served_versions(name: str, versions: Mapping[str, Path], options: ModelOptions) -> list[str]:
    if options.versions == "all":
        return list(versions)
    if options.versions == "latest":
        return list(versions)[-1:]
    served = [*map(str, options.versions)]
    if missing := [version for version in served if version not in versions]:
        raise ArgumentError(
            f"{name}/{OPTIONS_FILE}: version {missing[0]}, expected some of {', '.join(versions)}."
        )
    return served


def _model_file(folder: Path) -> Path:
    """Return the file of the model in a folder."""
    for name in _MODEL_NAMES:
        if (folder / name).is_file():
            return folder / name
    files = [entry for entry in folder.iterdir() if entry.suffix in _SUFFIXES]
    if len(files) != 1:
        raise ModelNotFoundError(
            f"{folder}: {len(files)} model files, expected one .onnx or .hetero, or "
            f"{_MODEL_NAMES[0]}."
        )
    return files[0]


def read_options(path: Path, defaults: ModelOptions) -> ModelOptions:
    """Return a model's options; the defaults if there is no such file."""
    if not path.exists():
        return defaults
    document = _READER.read_yaml(path)
    try:
        options = msgspec.convert(document, ModelOptions)
    except (msgspec.ValidationError, OverflowError) as error:
        raise _READER.problem(path, error) from error
    overrides = {name: getattr(options, name) for name in document}
    config = defaults.config | options.config
    return msgspec.structs.replace(defaults, **overrides | {"config": config})


def _source(name: str, version: str, path: Path, options: ModelOptions, load: Load) -> ModelSource:
    status = path.stat()
    stamp = (path, status.st_mtime_ns, status.st_size, status.st_ino, options)
    return ModelSource(name, version, lambda: load(path, options), stamp, published_folder(path))


def _joined_source(name: str, folder: Path, options: ModelOptions, load: Load) -> ModelSource:
    """Return the source of a model that is joined from several files of a folder."""
    for file in options.join:
        if not (folder / file).is_file() or Path(file).name != file:
            files = ", ".join(sorted(p.name for p in folder.iterdir() if p.suffix == ".onnx"))
            raise ModelNotFoundError(
                f"{name}/{OPTIONS_FILE}: join: expected files of this folder ({files or 'none'}), "
                f"got {file!r}."
            )
    stamps = [((folder / file).stat().st_mtime_ns, file) for file in options.join]
    return ModelSource(name, "1", lambda: load(folder, options), (folder, *stamps, options))


def _raise_later(error: Exception) -> Callable[[], CompiledModel]:
    def load() -> CompiledModel:
        raise error

    return load
