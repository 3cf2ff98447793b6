"""Execution providers of ONNX Runtime: their names, and sessions on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx

from hetero.devices.model.extension import library_path
from hetero.devices.ort.provider_library import ProviderLibrary
from hetero.devices.ort.runtime import onnxruntime
from hetero.devices.plugin.native_call import NativeCall

_CPU: Final = "CPUExecutionProvider"
#: A model that every working provider runs.
_SMOKE_TEST: Final = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 13]> smoke_test (float[1,2,4,4] x) => (float[1,2,4,4] y)'
    "{h = Add(x, x) y = Relu(h)}"
)


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
    #: The library of a plug-in provider; None for a provider inside ONNX Runtime.
    plugin_library: ProviderLibrary | None = None
    #: The device's index among those of a plug-in provider.
    device_index: int = 0

    @classmethod
    def from_fields(cls, fields: Sequence[Any]) -> Provider:
        """Return the provider with these fields, as msgpack unpacks them."""
        name, options, libraries, library, index = fields
        return cls(
            name,
            tuple((option, value) for option, value in options),
            tuple(libraries),
            library and ProviderLibrary(*library),
            index,
        )

    @property
    def is_cpu(self) -> bool:
        """Whether this is ONNX Runtime's own CPU provider."""
        return self.name == _CPU

    def open_session(
        self, data: bytes, options: onnxruntime.SessionOptions
    ) -> onnxruntime.InferenceSession:
        """Open a session of a model on this provider; raise rather than fall back to another."""
        arguments = self._configure(options)
        with NativeCall():
            session = onnxruntime.InferenceSession(data, options, enable_fallback=0, **arguments)
        if self.name not in session.get_providers():
            raise RuntimeError(f"{self.name} does not start; ONNX Runtime's log has the reason")
        return session

    def compile_context(self, data: bytes, options: onnxruntime.SessionOptions) -> bytes:
        """Compile a model to a model of EPContext nodes; return nothing if it has none.

        https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html
        """
        self._configure(options)
        with NativeCall():
            compiler = onnxruntime.ModelCompiler(
                options,
                data,
                embed_compiled_data_into_model=True,
                graph_optimization_level=options.graph_optimization_level,
            )
            context: bytes = compiler.compile_to_bytes()
        nodes = onnx.ModelProto.FromString(context).graph.node
        return context if any(node.op_type == "EPContext" for node in nodes) else b""

    def _configure(self, options: onnxruntime.SessionOptions) -> Mapping[str, Any]:
        """Add the provider to session options; return the arguments of the session."""
        for path in self.libraries:
            options.register_custom_ops_library(path)
        if self.plugin_library is None:
            return {"providers": [(self.name, dict(self.options))]}
        devices = [d for d in self.plugin_library.ep_devices() if d.ep_name == self.name]
        if self.device_index >= len(devices):
            raise RuntimeError(
                f"{self.name} has {len(devices)} devices; number {self.device_index} is gone"
            )
        options.add_provider_for_devices([devices[self.device_index]], dict(self.options))
        return {}

    def open_assignment_session(
        self, data: bytes, log_severity: int = 4
    ) -> onnxruntime.InferenceSession:
        """Open a session that records which provider each node is assigned to."""
        options = quiet_options()
        options.log_severity_level = log_severity
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return self.open_session(data, options)

    def check(self, log_severity: int = 4) -> None:
        """Run a small model; raise if the provider cannot run it or is wrong."""
        session = self.open_assignment_session(_SMOKE_TEST.SerializeToString(), log_severity)
        groups = session.get_provider_graph_assignment_info()
        if all(group.ep_name != self.name for group in groups):
            raise RuntimeError("it leaves Add and Relu to the CPU provider")
        x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)
        (y,) = session.run(None, {"x": x})
        if not np.allclose(y, np.maximum(x + x, 0), atol=1e-2):
            raise RuntimeError("it computes Add and Relu wrong")


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


def built_in_providers() -> list[str]:
    """Return the providers inside the installed ONNX Runtime, except the CPU's."""
    # Azure's is not a device: it sends whole models to a service.
    others = {_CPU, "AzureExecutionProvider", *(d.ep_name for d in onnxruntime.get_ep_devices())}
    return [name for name in onnxruntime.get_available_providers() if name not in others]
