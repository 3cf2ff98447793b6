"""Devices that this project knows of, installed or not: what they are, and what brings them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device's name of which the first part is a plugin's.

    Attributes
    ----------
    what : str
        What it is.
    install : str
        The command that brings it.
    missing : str
        Why there is none, where no plugin says it.
    """

    what: str
    install: str
    missing: str = ""


def _provider(what: str, wheel: str, provider: str) -> KnownDevice:
    return KnownDevice(
        f"ONNX Runtime on {what}",
        # All of them are one package, `onnxruntime`: an environment holds one of them.
        f"pip uninstall -y onnxruntime && pip install {wheel}",
        f"no onnxruntime here has {provider}ExecutionProvider; its wheel takes the place of others",
    )


KNOWN: Final[Mapping[str, KnownDevice]] = {
    "CPU": KnownDevice("numpy kernels", "pip install hetero"),
    "ORT": KnownDevice("ONNX Runtime on the CPU", "pip install 'hetero[ort]'"),
    "OV": KnownDevice("OpenVINO: CPUs, GPUs, NPUs", "pip install 'hetero[openvino]'"),
    "GPU": KnownDevice("NVIDIA GPUs, by CuPy on the CPU's kernels", "pip install 'hetero[gpu]'"),
    "ORT_CUDA": _provider("NVIDIA GPUs", "onnxruntime-gpu", "CUDA"),
    "ORT_TENSORRT": _provider("NVIDIA GPUs through TensorRT", "onnxruntime-gpu", "Tensorrt"),
    "ORT_OPENVINO": _provider("OpenVINO", "onnxruntime-openvino", "OpenVINO"),
    "ORT_MIGRAPHX": _provider("AMD GPUs", "onnxruntime-migraphx", "MIGraphX"),
    "ORT_QNN": _provider("Qualcomm's NPUs", "onnxruntime-qnn", "QNN"),
    "NULL": KnownDevice("no compute: scripted times, to measure with", "pip install hetero"),
}
