"""One plugin for each plug-in execution provider of ONNX Runtime: ``ORT_GGML``, ``ORT_QNN``, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np

from hetero.devices.errors import DeviceError, PluginLoadError, UnsupportedNodesError
from hetero.devices.faults.fault import NodeView
from hetero.devices.model.model import Model, Node
from hetero.devices.model.worker_process import WorkerFailure
from hetero.devices.ort.known_providers import KNOWN_PROVIDERS, KnownProvider
from hetero.devices.ort.program import OrtProgram
from hetero.devices.ort.provider import Provider, custom_operator_libraries
from hetero.devices.ort.provider_library import ProviderLibrary
from hetero.devices.ort.provider_plugin import ProviderPlugin, ProviderProgram
from hetero.devices.ort.query import WORKER
from hetero.devices.ort.runtime import onnxruntime
from hetero.devices.ort.session import compile_context
from hetero.devices.ort.trial import ProviderDevice, check_provider, try_library
from hetero.devices.plugin.program import Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from hetero.devices.plugin.remote_memory import RemoteTensor
from hetero.devices.plugin.support import Refusal

#: Ranks of a provider's devices in bare ``HETERO``: one that shares the CPU's cores is slower than
#: ONNX Runtime's own CPU provider.
_RANKS: Final = {"CPU": 46, "GPU": 10, "NPU": 10}
#: Processor time of the trial of a library, as a number of queries: drivers compile shaders.
_TRIAL_QUERIES: Final = 400
#: The compiled model in the header of a payload.
_CONTEXT: Final = "context"


class LibraryProgram(ProviderProgram):
    """A session on a plug-in provider, which records where its nodes run.

    Runs with an empty input use ONNX Runtime's CPU provider: libraries that are not prepared for
    tensors without elements end the process, as ggml's does.

    `level`: ONNX Runtime's optimisations; by default all, or none with DISABLE_TRANSFORMATIONS.
    `writes_contexts`: whether the provider writes its compiled model, which is then exported.
    """

    def __init__(
        self, *arguments: Any, level: str = "", writes_contexts: bool = False, **options: Any
    ) -> None:
        self._level = level
        self._writes_contexts = writes_contexts
        #: The model as the provider compiled it; empty if the provider does not write it.
        self._context = b""
        super().__init__(*arguments, **options)

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Run the session."""
        if any(is_empty(value) for value in inputs):
            return self._cpu_program.run(inputs, context)
        return super().run(inputs, context)

    @cached_property
    def _cpu_program(self) -> OrtProgram:
        """The model on ONNX Runtime's CPU provider."""
        provider = Provider(libraries=self._provider.libraries)
        return OrtProgram(self._model, self._config, provider, payload=self._payload)

    def export(self) -> Payload:
        """Return the model, and the compiled model if the provider writes it."""
        payload = super().export()
        if self._context and self._payload is None:
            return replace(payload, header={**payload.header, _CONTEXT: self._context})
        return payload

    def nodes_elsewhere(self) -> list[str]:
        """Return the names of the session's nodes that another provider runs."""
        if self._session is None:
            return []
        return [
            node.name
            for group in self._session.get_provider_graph_assignment_info()
            if group.ep_name != self._provider.name
            for node in group.get_nodes()
        ]

    def _open(
        self, options: onnxruntime.SessionOptions
    ) -> tuple[onnxruntime.InferenceSession, list[np.ndarray]]:
        """Open a session; the provider loads its compiled model if there is one."""
        if self._payload is not None:
            self._context = self._payload.header.get(_CONTEXT, b"")
        elif self._writes_contexts:
            self._context = self._compile_context()
        if not self._context:
            return super()._open(options)
        try:
            return self._provider.open_session(self._context, options), []
        except Exception as error:
            raise self._compile_error(error) from error

    def _compile_context(self) -> bytes:
        """Compile the model once, for the session and for the export."""
        data, weights = self._session_source()
        try:
            return compile_context(data, weights, self._options(), self._provider)
        except Exception:  # the session then compiles the model, and raises if it cannot either
            return b""

    def _options(self, level: str = "") -> onnxruntime.SessionOptions:
        options = super()._options(level or self._level)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options


class LibraryPlugin(ProviderPlugin):
    """A plug-in execution provider: a library that is registered with ONNX Runtime.

    A worker process loads the library first, so that a library that ends its process becomes a
    plugin with an error. The worker also runs each kind of node once before the provider gets it.
    """

    #: The provider's library.
    library: ClassVar[ProviderLibrary]
    program: ClassVar[type[OrtProgram]] = LibraryProgram

    @property
    def provider_facts(self) -> KnownProvider:
        """Facts about the provider; empty for an unknown one."""
        return KNOWN_PROVIDERS.get(self.name) or KnownProvider("", "", "its hardware is missing")

    def _fault(self, node: Node, model: Model) -> Refusal | None:
        return self.provider_facts.faults.refusal(NodeView(node, model))

    def _find_devices(self) -> None:
        """Load the library in the worker, and keep its devices that work."""
        self._devices: list[ProviderDevice] = []
        result = WORKER.call(
            try_library,
            self.library,
            tuple(self.provider_facts.defaults.items()),
            count=_TRIAL_QUERIES,
        )
        if isinstance(result, WorkerFailure):
            raise self._load_error(
                f"it crashes the process that loads it ({result.reason})",
                "Install another version, or uninstall it",
            )
        if isinstance(result, str):
            raise self._load_error(f"it cannot be loaded: {result}", self._version_advice())
        devices = [ProviderDevice(*row) for row in result]
        if not devices:
            raise self._load_error(
                "it finds no device on this machine", self.provider_facts.requirement
            )
        self._devices = [device for device in devices if not device.error]
        if not self._devices:
            reason = f"its device {_label(devices[0])} does not work: {devices[0].error}"
            raise self._load_error(reason, self.provider_facts.requirement)
        type(self).provider_name = self._devices[0].provider
        type(self).rank = min(_RANKS.get(device.kind, 10) for device in self._devices)

    def _load_error(self, reason: str, advice: str) -> PluginLoadError:
        advice = advice[:1].upper() + advice[1:]
        return PluginLoadError(f"{self.library.origin}: {reason}. {advice}.", device=self.name)

    def _version_advice(self) -> str:
        required = self.library.required_version()
        if not required:
            return "Expected a library of a plug-in execution provider of ONNX Runtime"
        return f"It requires {required}; the installed version is {self.version()}"

    def device_ids(self) -> tuple[str, ...]:
        """Return the ids of the devices that work."""
        return tuple(map(str, range(len(self._devices))))

    def provider(self, config: Config) -> Provider:
        """Return the provider with its options, its threads and the device DEVICE_ID."""
        device = self._devices[int(config.get("DEVICE_ID", 0))]
        options = dict(self.provider_facts.defaults)
        for name, value in config.get("PROVIDER_OPTIONS", {}).items():
            if name in self.provider_facts.options:
                value = self.provider_facts.options[name].parse(value)
            options[name] = str(int(value)) if isinstance(value, bool) else str(value)
        threads = config.get("INFERENCE_NUM_THREADS")
        if threads and self.provider_facts.threads:
            options.setdefault(self.provider_facts.threads, str(threads))
        return Provider(
            device.provider,
            tuple(sorted(options.items())),
            custom_operator_libraries(config.get("EXTENSIONS", ())),
            self.library,
            device.index,
        )

    def compile(self, model: Model, config: Config) -> Program:
        """Open a session of the whole model, in which the provider runs every node.

        ONNX Runtime's optimisations may create nodes that the provider does not take; the model
        then runs without them.

        Raises
        ------
        UnsupportedNodesError
            The provider does not take the nodes together, or fails to compile them.
        """
        provider = self.provider(config)
        try:
            contexts = self.provider_facts.writes_contexts
            program = LibraryProgram(model, config, provider, writes_contexts=contexts)
            if program.nodes_elsewhere():
                program = LibraryProgram(
                    model, config, provider, level="ORT_DISABLE_ALL", writes_contexts=contexts
                )
        except DeviceError as error:
            raise self._unsupported_error(model, model.nodes, str(error)) from error
        names = set(program.nodes_elsewhere())
        if names:
            nodes = [node for node in model.nodes if node.name in names] or model.nodes
            raise self._unsupported_error(
                model, nodes, f"{provider.name} does not take the node together with its neighbours"
            )
        return program

    def _unsupported_error(
        self, model: Model, nodes: Sequence[Node], reason: str
    ) -> UnsupportedNodesError:
        refusal = Refusal("no_kernel", reason)
        unsupported = {name: {self.name: refusal} for node in nodes for name in node.covers}
        return UnsupportedNodesError(
            f"{self.name} cannot run {len(unsupported)} nodes of model {model.name!r}: {reason}. "
            f"Add a device that supports them, as in HETERO:{self.name},CPU.",
            unsupported=unsupported,
        )

    def full_name(self, device_id: str) -> str:
        """Return the hardware's name, and the provider with its version."""
        device = self._devices[int(device_id)]
        version = f" {device.version}" if device.version else ""
        return (
            f"{_label(device)}, {device.provider}{version} of {self.library.origin} in ONNX "
            f"Runtime {self.version()}"
        )

    def fingerprint(self, device_id: str) -> str:
        """Return the fingerprints of ONNX Runtime and the library, and the hardware."""
        device = self._devices[int(device_id)]
        return f"{super().fingerprint(device_id)}-{self.library.origin}-{_label(device)}"

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return whether the device has its own memory."""
        device = self._devices[int(device_id)]
        properties = dict(super().device_properties(device_id))
        properties["DEVICE_TYPE"] = "DISCRETE" if device.is_discrete else "INTEGRATED"
        return properties

    def _check(self, provider: Provider) -> None:
        """Run a small model in the worker, once per set of options; raise if it fails."""
        if provider in self._working:
            return
        reason = WORKER.call(check_provider, provider, count=_TRIAL_QUERIES)
        if isinstance(reason, WorkerFailure):
            reason = f"it crashes: {reason.reason}"
        if reason:
            raise RuntimeError(reason)
        self._working.add(provider)


def is_empty(value: Value) -> bool:
    """Return whether a value is a tensor without elements."""
    return isinstance(value, np.ndarray | RemoteTensor) and 0 in value.shape


def library_class(library: ProviderLibrary) -> type[LibraryPlugin]:
    """Create the plugin class of a plug-in provider's library."""
    known = KNOWN_PROVIDERS.get(library.device)
    documented = f" {_documentation(known)}" if known and known.options else ""
    options = LibraryPlugin.properties["PROVIDER_OPTIONS"]
    attributes = {
        "name": library.device,
        "origin": library.origin,
        "library": library,
        "provider_name": "",
        "properties": LibraryPlugin.properties.extended(
            replace(options, doc=options.doc + documented)
        ),
    }
    return type(library.device, (LibraryPlugin,), attributes)


def _documentation(known: KnownProvider) -> str:
    """Return a list of a provider's options, with their types."""
    rows = [
        f"{option.name} ({', '.join(option.choices) or option.type.__name__})"
        for option in known.options.values()
    ]
    return f"Options of {known.wheel}: {', '.join(rows)}."


def _label(device: ProviderDevice) -> str:
    """Return the name of a device's hardware."""
    return device.hardware or f"{device.vendor} {device.kind}"
