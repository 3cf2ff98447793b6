"""Libraries of plug-in execution providers: discovery and registration in this process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from hetero.devices.ort.known_providers import KNOWN_PROVIDERS
from hetero.devices.ort.runtime import onnxruntime
from hetero.devices.plugin.entry_points import installed_points, modified_ns

#: Entry points of plug-in providers: the name of the provider, and a package with
#: `get_library_path`.
GROUP: Final = "hetero.execution_providers"
#: Names of the wheels that hold a plug-in provider.
_WHEEL: Final = re.compile(r"onnxruntime-(?:ep-(?P<ep>.+)|(?P<other>qnn|ggml))")
#: Paths of the libraries that are registered in this process -> their registered names.
_REGISTERED: Final[dict[str, str]] = {}
_LOCK: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class ProviderLibrary:
    """A library with a plug-in execution provider; it is registered on first use."""

    #: Name of the device.
    device: str
    #: The wheel with its version, or the library's path.
    origin: str
    #: The Python package that knows the library's path; empty if `path` is set.
    package: str = ""
    #: Path of the library.
    path: str = ""
    #: Name to register the library under; empty for the package's name of the provider.
    registration: str = ""

    def ep_devices(self) -> list[Any]:
        """Return the library's devices of ONNX Runtime, after registering it in this process."""
        with _LOCK:
            registration, path = self._locate()
            if path not in _REGISTERED and not _devices_of(path):
                known = KNOWN_PROVIDERS.get(self.device)
                for name, value in known.environment.items() if known else ():
                    os.environ.setdefault(name, value)
                onnxruntime.register_execution_provider_library(registration, path)
                _REGISTERED[path] = registration
        return _devices_of(path)

    def unregister_namesakes(self) -> None:
        """Unregister other libraries that have this one's name; no session may use them."""
        with _LOCK:
            registration, path = self._locate()
            for other, name in list(_REGISTERED.items()):
                if name == registration and other != path:
                    onnxruntime.unregister_execution_provider_library(name)
                    del _REGISTERED[other]

    def required_version(self) -> str:
        """Return the version of ONNX Runtime that the wheel requires; empty if it names none."""
        try:
            requirements = metadata.requires(self.package.replace("_", "-")) or ()
        except (metadata.PackageNotFoundError, ValueError):
            return ""
        return next((r for r in requirements if re.match(r"onnxruntime\b(?!-)", r)), "")

    def _locate(self) -> tuple[str, str]:
        """Return the name to register, and the library's path."""
        if not self.package:
            path = Path(self.path).expanduser()
            if not path.is_file():
                raise FileNotFoundError(f"there is no file {path}")
            return self.registration, str(path.resolve())
        package = importlib.import_module(self.package)
        # The wheels of Microsoft, Intel and Qualcomm have `get_library_path`; ggml's has the other.
        find = getattr(package, "get_library_path", None) or package.library_path
        get_name = getattr(package, "get_ep_name", lambda: getattr(package, "EP_NAME", ""))
        return self.registration or get_name() or self.device, str(Path(find()).resolve())


def device_name(provider: str) -> str:
    """Return a provider's device name: ``ORT_CUDA`` for ``CUDAExecutionProvider``."""
    return "ORT_" + re.sub(r"\W", "", provider.removesuffix("ExecutionProvider")).upper()


def installed_libraries() -> Iterator[ProviderLibrary]:
    """Yield the libraries of installed wheels and entry points, and those that the user registered.

    Wheels are found by the names of their metadata folders, without importing them. Reading the
    metadata of all installed packages takes 0.1 s for each Core (154 packages).
    """
    names = set()
    for folder in sys.path:
        folder = folder or str(Path.cwd())
        for path in _wheel_records(folder, modified_ns(folder)):
            name, _, version = path.stem.partition("-")
            name = re.sub(r"[-_.]+", "-", name).lower()
            match = _WHEEL.fullmatch(name)
            if match and name not in names:
                names.add(name)
                origin, package = f"{name} {version}", name.replace("-", "_")
                yield ProviderLibrary(device_name(match["ep"] or match["other"]), origin, package)
    for point, distribution, version in installed_points(GROUP):
        origin = f"{distribution} {version}" if distribution else point.value
        yield ProviderLibrary(device_name(point.name), origin, point.value, "", point.name)


@lru_cache(maxsize=64)
def _wheel_records(folder: str, modified_ns: int) -> tuple[Path, ...]:
    """Return the metadata folders of ONNX Runtime's wheels; each Core asks for them."""
    return tuple(sorted(Path(folder).glob("onnxruntime*.dist-info")))


def registered_libraries(installed: Sequence[ProviderLibrary]) -> Iterator[ProviderLibrary]:
    """Yield the libraries that the user's program registered itself, except `installed` ones."""
    specs = [importlib.util.find_spec(library.package) for library in installed]
    folders = [folder for s in specs if s for folder in s.submodule_search_locations or ()]
    for device in onnxruntime.get_ep_devices():
        path = _library_path(device)
        is_installed = any(Path(path).is_relative_to(Path(f).resolve()) for f in folders)
        if path and path not in _REGISTERED and not is_installed:
            yield ProviderLibrary(device_name(device.ep_name), path, "", path, device.ep_name)


def _devices_of(path: str) -> list[Any]:
    return [device for device in onnxruntime.get_ep_devices() if _library_path(device) == path]


def _library_path(device: Any) -> str:
    path = device.ep_metadata.get("library_path", "")
    return str(Path(path).resolve()) if path else ""
