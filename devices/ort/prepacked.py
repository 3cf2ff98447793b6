"""Weights in the layout that ONNX Runtime computes with, kept in a blob and read from its file.

ONNX Runtime copies the weights of matrix products into a layout of its own when a session is made:
time at each start, and a private copy in each process. It can write that layout beside a model and
later map it; here it is kept among a payload's tensors, and if the payload is in a file, ONNX
Runtime gets its place. Then all processes of a node share one copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime

from devices.plugin.program import FilePlace, Payload

#: Session options: writing the layout, and where external data is looked for.
SAVE_OPTION: Final = "session.save_external_prepacked_constant_initializers"
_FOLDER_OPTION: Final = "session.model_external_initializers_file_folder_path"
#: How ONNX Runtime writes one packed buffer: kernel and hash, offset, length, checksum.
_ENTRY: Final = re.compile(r"([^|;]+)\|(\d+);(\d+);(\d+)")
#: What its first entry is called in a tensor's external data.
_KEY: Final = "prepacked_0"
#: Ends the name of a packed weight among a payload's tensors.
_SUFFIX: Final = "#packed"


def read_packed(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the packed weights of an optimised model that ONNX Runtime has written.

    They lie beside the model's `path`. The first maps a weight to kernel and hash, the second a
    tensor of the payload to its bytes. Weights that are packed into several buffers are left out:
    they are packed when a session is made.
    """
    proto = onnx.load(path, load_external_data=False)
    keys: dict[str, str] = {}
    arrays: dict[str, np.ndarray] = {}
    for tensor in proto.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        found = _ENTRY.fullmatch(entries.get(_KEY, ""))
        if found is None or "prepacked_1" in entries:
            continue
        key, offset, length, checksum = found.groups()
        keys[tensor.name] = f"{key};{checksum}"
        arrays[tensor.name + _SUFFIX] = np.memmap(
            path.with_name(entries["location"]), np.uint8, "r", int(offset), (int(length),)
        )
    return keys, arrays


def is_packed(name: str) -> bool:
    """Whether a payload's tensor is a packed weight, not one of the model's."""
    return name.endswith(_SUFFIX)


class PackedFile:
    """The file that a payload's packed weights are in."""

    def __init__(self, payload: Payload) -> None:
        places = payload.places
        keys: Mapping[str, Any] = payload.header["packed"]
        self._keys = keys
        self._payload = payload
        #: Weights that a session reads from the file, the packed form included.
        self.names = [n for n in keys if n in places and n + _SUFFIX in places]
        if not self.unchanged():
            self.names = []

    def point(self, data: bytes, options: onnxruntime.SessionOptions) -> bytes:
        """Return a model's bytes with the weights' places in the file."""
        if not self.names:
            return data
        place = self._payload.places[self.names[0]]
        options.add_session_config_entry(_FOLDER_OPTION, str(Path(place.path).parent))
        proto = onnx.ModelProto()
        proto.ParseFromString(data)
        wanted = set(self.names)
        for tensor in proto.graph.initializer:
            if tensor.name in wanted:
                self._describe(tensor)
        pointed: bytes = proto.SerializeToString()
        return pointed

    def unchanged(self) -> bool:
        """Whether the file is still the one whose checksums were verified."""
        for name in self.names[:1]:
            place = self._payload.places[name]
            try:
                return FilePlace.identify(Path(place.path).stat()) == place.identity
            except OSError:
                return False
        return True

    def _describe(self, tensor: onnx.TensorProto) -> None:
        name = tensor.name
        weight, packed = (self._payload.places[n] for n in (name, name + _SUFFIX))
        key, _, checksum = str(self._keys[name]).partition(";")
        length = self._payload.tensors[name + _SUFFIX].nbytes
        del tensor.external_data[:]
        for entry, value in (
            ("location", Path(weight.path).name),
            ("offset", weight.offset),
            ("length", self._payload.tensors[name].nbytes),
            (_KEY, f"{key}|{packed.offset};{length};{checksum}"),
        ):
            tensor.external_data.add(key=entry, value=str(value))
