"""An execution provider of ONNX Runtime, with its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnxruntime

from hetero.devices.model.extension import library_path
from hetero.devices.plugin.native_call import NativeCall

_CPU: Final = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True)
class Provider:
    """What a session runs on; nodes that it does not take go to ONNX Runtime's own CPU provider."""

    #: ONNX Runtime's name of it.
    name: str = _CPU
    #: Its own options.
    options: tuple[tuple[str, str], ...] = ()
    #: Files of custom operators that its sessions have.
    libraries: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether it is the provider that every ONNX Runtime has."""
        return self.name == _CPU

    def open_session(
        self, data: bytes, options: onnxruntime.SessionOptions
    ) -> onnxruntime.InferenceSession:
        """Return a session of a model, or raise: never one on another provider instead."""
        for path in self.libraries:
            options.register_custom_ops_library(path)
        found = [device for device in _plugged_in() if device.ep_name == self.name]
        chosen: Mapping[str, Any] = {"providers": [(self.name, dict(self.options))]}
        if found and not self.is_cpu:
            options.add_provider_for_devices(found[:1], dict(self.options))
            chosen = {}
        with NativeCall():
            session = onnxruntime.InferenceSession(data, options, enable_fallback=0, **chosen)
        if self.name not in session.get_providers():
            raise RuntimeError(f"{self.name} does not start; its log says why")
        return session

    def open_asked(self, data: bytes) -> onnxruntime.InferenceSession:
        """Return a session that tells who runs which of its nodes."""
        options = quiet_options()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return self.open_session(data, options)


def quiet_options() -> onnxruntime.SessionOptions:
    """Return session options that keep the graph as it is, and print nothing."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def libraries(extensions: Sequence[str]) -> tuple[str, ...]:
    """Return the libraries of custom operators among `extensions`."""
    paths = (library_path(origin) for origin in extensions)
    return tuple(path for path in paths if path is not None)


def provider_names() -> list[str]:
    """Return the providers that the installed ONNX Runtime has, besides the CPU's."""
    known = [*onnxruntime.get_available_providers(), *(d.ep_name for d in _plugged_in())]
    # Azure's is no device: it sends whole models elsewhere.
    return [name for name in dict.fromkeys(known) if name not in (_CPU, "AzureExecutionProvider")]


def _plugged_in() -> list[Any]:
    """Return the devices of providers that were registered as libraries of their own."""
    return list(getattr(onnxruntime, "get_ep_devices", list)())
