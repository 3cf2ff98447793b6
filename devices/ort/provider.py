"""Execution providers of ONNX Runtime: their names, and sessions on them."""

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
    """An execution provider with its options and custom operators.

    ONNX Runtime's own CPU provider runs the nodes that a provider does not take.
    """

    #: ONNX Runtime's name of the provider.
    name: str = _CPU
    #: Options of the provider.
    options: tuple[tuple[str, str], ...] = ()
    #: Libraries of custom operators that sessions load.
    libraries: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether this is ONNX Runtime's own CPU provider."""
        return self.name == _CPU

    def open_session(
        self, data: bytes, options: onnxruntime.SessionOptions
    ) -> onnxruntime.InferenceSession:
        """Open a session of a model on this provider; raise rather than fall back to another."""
        for path in self.libraries:
            options.register_custom_ops_library(path)
        devices = [device for device in _registered_devices() if device.ep_name == self.name]
        arguments: Mapping[str, Any] = {"providers": [(self.name, dict(self.options))]}
        if devices and not self.is_cpu:
            options.add_provider_for_devices(devices[:1], dict(self.options))
            arguments = {}
        with NativeCall():
            session = onnxruntime.InferenceSession(data, options, enable_fallback=0, **arguments)
        if self.name not in session.get_providers():
            raise RuntimeError(f"{self.name} does not start; ONNX Runtime's log has the reason")
        return session

    def open_assignment_session(self, data: bytes) -> onnxruntime.InferenceSession:
        """Open a session that records which provider each node is assigned to."""
        options = quiet_options()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return self.open_session(data, options)


def quiet_options() -> onnxruntime.SessionOptions:
    """Return session options without graph optimisations and log output."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def custom_operator_libraries(extensions: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of the libraries among `extensions`."""
    paths = (library_path(origin) for origin in extensions)
    return tuple(path for path in paths if path is not None)


def provider_names() -> list[str]:
    """Return the installed execution providers except the CPU's."""
    names = [
        *onnxruntime.get_available_providers(),
        *(device.ep_name for device in _registered_devices()),
    ]
    # Azure's is not a device: it sends whole models to a service.
    return [name for name in dict.fromkeys(names) if name not in (_CPU, "AzureExecutionProvider")]


def _registered_devices() -> list[Any]:
    """Return the devices of providers that were registered as separate libraries."""
    return list(getattr(onnxruntime, "get_ep_devices", list)())
