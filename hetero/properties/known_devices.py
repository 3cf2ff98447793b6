"""Devices that hetero knows, and the commands that install them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from hetero.devices.ort.known_providers import KNOWN_PROVIDERS, KnownProvider
from hetero.devices.plugin.install_command import install_command


class KnownDevice(NamedTuple):
    """A device that hetero knows, and the command that installs it."""

    description: str
    install: str
    #: Reason for its absence if no plugin reports one.
    missing: str = "its plugin is not installed"


def _built_in(hardware: str, wheel: str, provider: str) -> KnownDevice:
    """Return a provider inside a wheel that replaces `onnxruntime`."""
    return KnownDevice(
        f"ONNX Runtime on {hardware}",
        # The wheels provide the same package, `onnxruntime`; an environment holds one of them.
        f"pip uninstall -y onnxruntime && pip install {wheel}",
        f"the installed onnxruntime lacks {provider}ExecutionProvider; its wheel replaces others",
    )


def _plug_in(provider: KnownProvider) -> KnownDevice:
    """Return a provider in a wheel that is installed in addition to `onnxruntime`."""
    return KnownDevice(
        f"ONNX Runtime on {provider.hardware}",
        f"pip install {provider.pip_options}{provider.wheel}",
        f"the wheel {provider.wheel}, a plug-in of onnxruntime, is not installed",
    )


@cache
def known_devices() -> Mapping[str, KnownDevice]:
    """Return the devices that hetero knows, by the names of their plugins."""
    return {
        "CPU": KnownDevice("numpy kernels", install_command()),
        "ORT": KnownDevice("ONNX Runtime on the CPU", install_command("ort")),
        "OV": KnownDevice("OpenVINO: CPUs, GPUs, NPUs", install_command("openvino")),
        "GPU": KnownDevice("NVIDIA GPUs, by CuPy on the CPU's kernels", install_command("gpu")),
        "ORT_CUDA": _built_in("NVIDIA GPUs", "onnxruntime-gpu", "CUDA"),
        "ORT_TENSORRT": _built_in("NVIDIA GPUs through TensorRT", "onnxruntime-gpu", "Tensorrt"),
        "ORT_MIGRAPHX": _built_in("AMD GPUs", "onnxruntime-migraphx", "MIGraphX"),
        **{name: _plug_in(provider) for name, provider in KNOWN_PROVIDERS.items()},
        "NULL": KnownDevice("no compute: scripted times, to measure with", install_command()),
    }
