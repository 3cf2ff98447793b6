"""One device for each further execution provider of ONNX Runtime: ``ORT_CUDA``, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from hetero.devices.errors import PluginLoadError, PropertyError, UnsupportedOperationError
from hetero.devices.faults.fault import Fault, FaultTable, NodeView
from hetero.devices.faults.openvino import newer_feature, refusal
from hetero.devices.model.model import Model, Node
from hetero.devices.ort.errors import ERRORS
from hetero.devices.ort.plugin import ORTPlugin
from hetero.devices.ort.program import OrtProgram
from hetero.devices.ort.provider import Provider, custom_operator_libraries
from hetero.devices.ort.provider_library import device_name
from hetero.devices.ort.remote_memory import MEMORIES, OrtContext, OrtRemoteTensor, run_with_binding
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.devices.plugin.program import ExecutedNode, RunContext, Value
from hetero.devices.plugin.properties import FULL_PRECISION, Config, Property, PropertyTable
from hetero.devices.plugin.remote_memory import RemoteContext, RemoteTensor
from hetero.devices.plugin.support import Refusal

#: A provider may compute in less than float32.
_INHERITED_PROPERTIES: Final = ORTPlugin.properties.without(FULL_PRECISION.name)
_OPENVINO: Final = "OpenVINOExecutionProvider"
#: Providers that share the CPU's cores; they rank below accelerators.
_CPU_PROVIDERS: Final = frozenset({_OPENVINO, "DnnlExecutionProvider", "XnnpackExecutionProvider"})
#: Providers -> the name of their option for the number of threads.
_THREAD_OPTIONS: Final = {
    _OPENVINO: "num_of_threads",
    "XnnpackExecutionProvider": "intra_op_num_threads",
}
#: Further faults of the OpenVINO version inside the provider, which is older than device OV's.
_OPENVINO_FAULTS: Final = FaultTable(
    "OpenVINO",
    (
        Fault(
            "AveragePool MaxPool",
            "with ceil_mode it adds windows that begin in the padding",
            lambda v: v.attribute("ceil_mode"),
        ),
        Fault(
            "Max Mean Min Sum",
            "with a single input its result is undefined",
            lambda v: len(v.node.inputs) == 1,
        ),
        Fault("CenterCropPad", "its result is empty"),
        Fault("LpNormalization", "its result is NaN if the norm is 0"),
    ),
)


class ProviderProgram(OrtProgram):
    """A session on a provider that does not export its compiled model."""

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run the session; inputs in the device's memory are not copied to the host."""
        if self._session and any(isinstance(value, OrtRemoteTensor) for value in inputs):
            values = dict(zip(self._input_names, inputs, strict=True))
            names = self._session_outputs
            arrays = run_with_binding(self._session, self._select_inputs(values), names)
            return self._outputs(values, dict(zip(names, arrays, strict=True)))
        return super().run(inputs, context)

    def takes_remote(self, tensor: RemoteTensor) -> bool:
        """Return whether a tensor is in the device's memory."""
        return isinstance(tensor, OrtRemoteTensor)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return nothing: providers do not report which nodes they fuse."""
        return ()

    def _optimised_model(self, *arguments: Any, **options: Any) -> Model:
        return self._source

    def _profile(self, values: Mapping[str, Value]) -> dict[str, float]:
        return {}


class ProviderPlugin(ORTPlugin):
    """An execution provider; it takes the nodes that ONNX Runtime assigns to it."""

    #: ONNX Runtime's name of the provider.
    provider_name: ClassVar[str]
    program: ClassVar[type[OrtProgram]] = ProviderProgram
    leaves_outputs: ClassVar[bool] = False
    #: Sessions of providers ignore the options for blocks and mapped weights.
    memory_traits: ClassVar[MemoryTraits] = replace(
        ORTPlugin.memory_traits, values_option="", compact_options={}
    )
    properties: ClassVar[PropertyTable] = _INHERITED_PROPERTIES.extended(
        Property(
            "PROVIDER_OPTIONS",
            dict,
            {},
            True,
            "Options of the provider, as ONNX Runtime documents them.",
            shapes_result=True,
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self._working: set[Provider] = set()
        self._find_devices()

    def provider(self, config: Config) -> Provider:
        """Return the provider with its options and its number of threads."""
        options = {str(n): str(v) for n, v in config.get("PROVIDER_OPTIONS", {}).items()}
        threads = config.get("INFERENCE_NUM_THREADS")
        if threads and self.provider_name in _THREAD_OPTIONS:
            options.setdefault(_THREAD_OPTIONS[self.provider_name], str(threads))
        paths = custom_operator_libraries(config.get("EXTENSIONS", ()))
        return Provider(self.provider_name, tuple(sorted(options.items())), paths)

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Query the provider for every node that has no known fault."""
        refusals = {n.name: r for n in model.nodes if (r := self._fault(n, model)) is not None}
        others = model.replace(nodes=[n for n in model.nodes if n.name not in refusals])
        # Support does not depend on the number of threads.
        provider = self.provider({**config, "INFERENCE_NUM_THREADS": 0})
        try:
            self._check(provider)
        except Exception as error:  # providers raise many types
            raise PropertyError(
                f"{self.provider_name} does not work with PROVIDER_OPTIONS="
                f"{config['PROVIDER_OPTIONS']!r}: {ERRORS.reason(error)}.",
                property="PROVIDER_OPTIONS",
            ) from error
        return {**self._query.query(others, provider), **refusals}

    def full_name(self, device_id: str) -> str:
        """Return the runtime's version and the provider."""
        return f"ONNX Runtime {self.version()} with {self.provider_name}"

    def fingerprint(self, device_id: str) -> str:
        """Return the CPU device's fingerprint and the provider."""
        return f"{super().fingerprint(device_id)}-{self.provider_name}"

    def create_context(self, config: Config | None = None) -> RemoteContext:
        """Return a context for the device's memory; raise if the provider uses host memory."""
        if self.provider_name not in MEMORIES:
            raise UnsupportedOperationError(
                f"{self.name} has no remote context: it computes in host memory."
            )
        return OrtContext(f"{self.name}.0", MEMORIES[self.provider_name])

    def _find_devices(self) -> None:
        """Find the provider's devices; raise PluginLoadError if none works."""
        try:
            self._check(self.provider({}))
        except Exception as error:  # providers raise many types
            raise PluginLoadError(
                f"the installed onnxruntime lists {self.provider_name}, which does not work here: "
                f"{ERRORS.reason(error)}. Its driver or libraries are missing.",
                device=self.name,
            ) from error

    def _check(self, provider: Provider) -> None:
        """Run a small model once per set of options; raise if the provider cannot or is wrong."""
        if provider not in self._working:
            provider.check()
            self._working.add(provider)

    def _fault(self, node: Node, model: Model) -> Refusal | None:
        if self.provider_name != _OPENVINO or node.domain:
            return None
        if feature := newer_feature(node, model.opset_imports.get("", 0)):
            return Refusal("opset", f"OpenVINO ignores {feature}, which is newer than its frontend")
        fault = _OPENVINO_FAULTS.refusal(NodeView(node, model))
        return fault or refusal(node, model, False, model.integer_ranges)


def provider_class(provider: str) -> type[ProviderPlugin]:
    """Create the plugin class of a provider: ``ORT_CUDA`` for ``CUDAExecutionProvider``."""
    name = device_name(provider)
    rank = 46 if provider in _CPU_PROVIDERS else 10
    return type(name, (ProviderPlugin,), {"name": name, "provider_name": provider, "rank": rank})
