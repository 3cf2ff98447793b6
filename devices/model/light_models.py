"""The light models that the onnx package contains, such as ``light:resnet50``.

They are nine real networks with generated weights (`onnx/backend/test/data/light`). The package
also contains their outputs for the input ``arange(n) / n``, reshaped, so that a run can be checked
without a download.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import numpy_helper

from hetero.devices.errors import ModelNotFoundError
from hetero.devices.file_reader import read_regular

if TYPE_CHECKING:
    from hetero.devices.model.model import Model

PREFIX: Final = "light:"
#: Models whose generated weights give all classes the same score, so that rounding decides.
EQUAL_SCORES: Final = frozenset({"light:squeezenet"})
_FOLDER: Final = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def light_model_names() -> tuple[str, ...]:
    """Return the valid names after ``light:``."""
    return tuple(sorted(p.stem.removeprefix("light_") for p in _FOLDER.glob("light_*.onnx")))


def light_model_path(name: str) -> Path:
    """Return the path of ``light:NAME``; ModelNotFoundError if onnx has no such model."""
    path = _FOLDER / f"light_{name.removeprefix(PREFIX)}.onnx"
    if not path.is_file():
        raise ModelNotFoundError(
            f"{name}: expected one of onnx's light models, {', '.join(light_model_names())}."
        )
    return path


def light_model_inputs(model: Model) -> dict[str, np.ndarray]:
    """Return the inputs of the reference outputs: ``arange(n) / n``, reshaped."""
    inputs = {}
    for port in model.inputs:
        shape = tuple(d if isinstance(d, int) else 1 for d in port.shape or ())
        count = int(np.prod(shape))
        inputs[port.name] = (np.arange(count) / count).reshape(shape).astype(port.dtype)
    return inputs


def light_model_outputs(name: str) -> list[np.ndarray]:
    """Return onnx's reference outputs of ``light:NAME``."""
    path = light_model_path(name)
    tensors = sorted(path.parent.glob(f"{path.stem}_output_*.pb"))
    protos = [onnx.load_tensor_from_string(read_regular(file)) for file in tensors]
    return [numpy_helper.to_array(proto) for proto in protos]
