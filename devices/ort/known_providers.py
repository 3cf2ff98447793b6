"""Facts about plug-in execution providers of ONNX Runtime that their libraries do not report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hetero.devices.faults import ggml
from hetero.devices.faults.fault import FaultTable
from hetero.devices.plugin.properties import Property, PropertyTable


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """A plug-in provider: its wheel, its hardware and its options."""

    #: Name of the wheel.
    wheel: str
    #: The hardware that the provider runs on.
    hardware: str
    #: Advice if the provider finds no device.
    requirement: str
    #: Documented options; a provider may have further ones.
    options: PropertyTable = field(default_factory=PropertyTable)
    #: Default options, where the provider's own defaults do not work.
    defaults: Mapping[str, str] = field(default_factory=dict)
    #: The option for the number of threads, if the provider runs on the CPU.
    threads: str = ""
    #: Options of pip: a wheel may require an older ONNX Runtime than it runs with.
    pip_options: str = ""
    #: Environment variables to set before the library is loaded, unless the user has set them.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Whether it writes its compiled model as EPContext nodes.
    #: https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html
    writes_contexts: bool = False
    #: Nodes that it accepts, but computes wrongly.
    faults: FaultTable = field(default_factory=lambda: FaultTable("", ()))


def _option(name: str, doc: str, *choices: Any, kind: type = str) -> Property:
    return Property(name, kind, None, True, doc, choices)


#: Device name -> facts about its provider.
KNOWN_PROVIDERS: Final[Mapping[str, KnownProvider]] = {
    "ORT_GGML": KnownProvider(
        "onnxruntime-ggml",
        "CPUs, Apple's GPUs, and GPUs with Vulkan, through ggml",
        "its ggml library finds no processor that it supports",
        # Options: the docstring of the wheel's package, version 0.2.0.
        PropertyTable(
            _option("device", "The kind of device.", "auto", "gpu", "cpu"),
            _option("threads", "Threads of the CPU.", kind=int),
            _option("partial", "Whether to take part of a model.", kind=bool),
            _option("dump", "Whether to write the graphs that it receives.", kind=bool),
            _option("weights", "The type of weights, f32 or f16."),
        ),
        {"weights": "f32"},  # its default rounds float32 weights to float16
        threads="threads",
        pip_options="--no-deps ",  # 0.2.0 requires onnxruntime<1.31, and runs with 1.32
        # By default it logs each load to stderr, and starts a debugger before it aborts.
        environment={"ORT_GGML_LOG": "error", "GGML_NO_BACKTRACE": "1"},
        faults=ggml.FAULTS,
    ),
    "ORT_OPENVINO": KnownProvider(
        "onnxruntime-ep-openvino",
        "Intel's CPUs, GPUs and NPUs, through OpenVINO",
        "it supports processors, GPUs and NPUs of Intel with their drivers; device OV runs on "
        "other x86 processors too",
        writes_contexts=True,
    ),
    "ORT_QNN": KnownProvider(
        "onnxruntime-qnn",
        "Qualcomm's NPUs, and their simulator on x86",
        "it supports Qualcomm's processors, and simulates their NPU on x86",
        # https://onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html
        PropertyTable(
            _option("backend_type", "The part of the processor.", "cpu", "gpu", "htp", "saver"),
            _option("backend_path", "Library of the backend, in place of backend_type."),
            _option(
                "htp_performance_mode",
                "Balance of power and speed.",
                "burst",
                "balanced",
                "default",
                "high_performance",
                "high_power_saver",
                "low_balanced",
                "extreme_power_saver",
                "low_power_saver",
                "power_saver",
                "sustained_high_performance",
            ),
            _option("vtcm_mb", "Megabytes of the NPU's fast memory.", kind=int),
            _option("enable_htp_fp16_precision", "Whether float32 runs as float16.", kind=bool),
        ),
        # The default backend is a library that the wheel for Linux does not contain.
        {"backend_type": "htp"},
        writes_contexts=True,
    ),
    "ORT_WEBGPU": KnownProvider(
        "onnxruntime-ep-webgpu",
        "GPUs with Vulkan, Metal or Direct3D 12, through WebGPU",
        "it needs a GPU with its Vulkan driver, and on Linux the loader libvulkan.so.1 (Debian: "
        "apt install libvulkan1 mesa-vulkan-drivers)",
    ),
    "ORT_NVTENSORRTRTX": KnownProvider(
        "onnxruntime-ep-nv-tensorrt-rtx",
        "NVIDIA's RTX GPUs, through TensorRT",
        "it needs an RTX GPU with NVIDIA's driver",
        writes_contexts=True,
    ),
    "ORT_MLX": KnownProvider(
        "onnxruntime-ep-mlx", "Apple's GPUs, through MLX", "it needs a Mac with Apple silicon"
    ),
}
