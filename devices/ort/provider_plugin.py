"""ONNX Runtime's other execution providers, each a device beside ``ORT``: ``ORT_CUDA``, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import onnx

from hetero.devices.errors import PluginLoadError, PropertyError, UnsupportedOperationError
from hetero.devices.model.model import Model, Node
from hetero.devices.openvino.operators import refusal, unread
from hetero.devices.ort.errors import ERRORS
from hetero.devices.ort.plugin import ORTPlugin
from hetero.devices.ort.program import OrtProgram
from hetero.devices.ort.provider import Provider, libraries
from hetero.devices.ort.remote import MEMORIES, OrtContext, OrtRemoteTensor, run_bound
from hetero.devices.plugin.faults import Fault, Use, departure
from hetero.devices.plugin.program import ExecutedNode, RunContext, Value
from hetero.devices.plugin.properties import Config, Property, PropertyTable
from hetero.devices.plugin.remote import RemoteContext, RemoteTensor
from hetero.devices.plugin.support import Refusal

_OPENVINO: Final = "OpenVINOExecutionProvider"
#: Providers that share the CPU's cores: they come after what computes elsewhere.
_ON_CORES: Final = frozenset({_OPENVINO, "DnnlExecutionProvider", "XnnpackExecutionProvider"})
#: Providers with an option for their threads -> its name.
_THREADS: Final = {_OPENVINO: "num_of_threads", "XnnpackExecutionProvider": "intra_op_num_threads"}
#: What every provider runs, whatever it is for.
_PROOF: Final = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 13]> proof (float[1,2,4,4] x) => (float[1,2,4,4] y)'
    "{h = Add(x, x) y = Relu(h)}"
)


#: How the OpenVINO that the provider holds, older than ours, departs from ONNX besides.
_FAULTS: Final = (
    Fault(
        "AveragePool MaxPool",
        "with ceil_mode it counts windows that begin in the padding",
        lambda u: u.get("ceil_mode"),
    ),
    Fault(
        "Max Mean Min Sum", "of one input it may give anything", lambda u: len(u.node.inputs) == 1
    ),
    Fault("CenterCropPad", "its result is empty"),
    Fault("LpNormalization", "NaN where the norm is 0"),
)


class ProviderProgram(OrtProgram):
    """A session on another provider, which keeps its form of the model to itself."""

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run the session; inputs that are in the device's memory are read there."""
        if self._session and any(isinstance(value, OrtRemoteTensor) for value in inputs):
            given = dict(zip(self._names, inputs, strict=True))
            values = run_bound(self._session, self._feeds(given), self._wanted)
            return self._outputs(given, dict(zip(self._wanted, values, strict=True)))
        return super().run(inputs, context)

    def takes_remote(self, tensor: RemoteTensor) -> bool:
        """Take tensors in the device's memory where they are."""
        return isinstance(tensor, OrtRemoteTensor)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return nothing: what a provider fuses, it does not tell."""
        return ()

    def _optimised(self, *arguments: Any, **options: Any) -> Model:
        return self._source

    def _profile(self, given: Mapping[str, Value]) -> dict[str, float]:
        return {}


class ProviderPlugin(ORTPlugin):
    """An execution provider: it takes what ONNX Runtime really runs on it."""

    #: ONNX Runtime's name of the provider.
    provider_name: ClassVar[str]
    program: ClassVar[type[OrtProgram]] = ProviderProgram
    leaves_outputs: ClassVar[bool] = False
    properties: ClassVar[PropertyTable] = ORTPlugin.properties.extended(
        Property(
            "PROVIDER_OPTIONS",
            dict,
            {},
            True,
            "The provider's own options, as ONNX Runtime documents them.",
            shapes_result=True,
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self._proved: set[Provider] = set()
        try:
            self._prove(self.provider({}))
        except Exception as error:  # whatever it raises is its reason
            raise PluginLoadError(
                f"the installed onnxruntime lists {self.provider_name}, which does not work here: "
                f"{ERRORS.reason(error)}. Its driver or libraries are missing.",
                device=self.name,
            ) from error

    def provider(self, config: Config) -> Provider:
        """Return the provider, with its options and its share of the threads."""
        options = {str(n): str(v) for n, v in config.get("PROVIDER_OPTIONS", {}).items()}
        threads = config.get("INFERENCE_NUM_THREADS")
        if threads and self.provider_name in _THREADS:
            options.setdefault(_THREADS[self.provider_name], str(threads))
        custom = libraries(config.get("EXTENSIONS", ()))
        return Provider(self.provider_name, tuple(sorted(options.items())), custom)

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Ask about every node that is not known to be computed wrong."""
        wrong = {n.name: r for n in model.nodes if (r := self._departs(n, model)) is not None}
        rest = model.replace(nodes=[n for n in model.nodes if n.name not in wrong])
        # Its threads change nothing in what it takes.
        asked = self.provider({**config, "INFERENCE_NUM_THREADS": 0})
        try:
            self._prove(asked)
        except Exception as error:  # as at the start
            raise PropertyError(
                f"PROVIDER_OPTIONS={config['PROVIDER_OPTIONS']!r}: with them {self.provider_name} "
                f"does not work: {ERRORS.reason(error)}.",
                property="PROVIDER_OPTIONS",
            ) from error
        return {**self._query.judge(rest, asked), **wrong}

    def full_name(self, device_id: str) -> str:
        """Return the runtime and the provider."""
        return f"ONNX Runtime {self.version()} with {self.provider_name}"

    def fingerprint(self, device_id: str) -> str:
        """Return what exported models depend on."""
        return f"{super().fingerprint(device_id)}-{self.provider_name}"

    def create_context(self, config: Config | None = None) -> RemoteContext:
        """Return the memory of the provider's device, if that is not the host's."""
        if self.provider_name not in MEMORIES:
            raise UnsupportedOperationError(f"{self.name} computes in the host's memory")
        return OrtContext(f"{self.name}.0", MEMORIES[self.provider_name])

    def _prove(self, provider: Provider) -> None:
        """Run a small model, once for given options; raise unless the provider runs it right."""
        if provider in self._proved:
            return
        session = provider.open_asked(_PROOF.SerializeToString())
        groups = session.get_provider_graph_assignment_info()
        if all(group.ep_name != provider.name for group in groups):
            raise RuntimeError("it leaves Add and Relu to the CPU")
        x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)
        (y,) = session.run(None, {"x": x})
        if not np.allclose(y, np.maximum(x + x, 0), atol=1e-2):
            raise RuntimeError("it computes Add and Relu wrong")
        self._proved.add(provider)

    def _departs(self, node: Node, model: Model) -> Refusal | None:
        if self.provider_name != _OPENVINO or node.domain:
            return None
        if what := unread(node, model.opset_imports.get("", 0)):
            return Refusal("opset", f"OpenVINO does not know {what}: it came later")
        older = departure("OpenVINO", _FAULTS, Use(node, model))
        return older or refusal(node, model, False, model.integer_ranges)


def provider_class(provider: str) -> type[ProviderPlugin]:
    """Return the plugin of a provider: ``CUDAExecutionProvider`` is device ``ORT_CUDA``."""
    name = "ORT_" + provider.removesuffix("ExecutionProvider").upper()
    rank = 46 if provider in _ON_CORES else 10
    return type(name, (ProviderPlugin,), {"name": name, "provider_name": provider, "rank": rank})
