"""Store of verdicts: each part of a model is verified once per device, driver and options.

Verdicts are kept in memory and, with CACHE_DIR, in a file for each model and device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import BinaryIO, Final

import msgspec

from hetero.cache.folder import VERDICTS_SUFFIX, Cache
from hetero.cache.key import verdicts_key
from hetero.devices.errors import BlobError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal
from hetero.properties.compile_request import CompileRequest
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.blob_writer import BlobWriter
from hetero.verify.verdict import PartVerdict, refusals_of

_log = logging.getLogger(__name__)

#: Content hash of a part -> its verdict.
Verdicts = Mapping[str, PartVerdict]
#: Kind of a file with verdicts.
_KIND: Final = "verdicts"
#: Models and devices whose verdicts are kept in memory.
_MAX_ENTRIES: Final = 256


class VerdictStore:
    """Verdicts by model and device. Thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, Verdicts] = {}
        self._lock = threading.Lock()

    def find(
        self, model: Model, device: str, request: CompileRequest, cache: Cache | None
    ) -> Verdicts:
        """Return the known verdicts on a model's parts on a device, by their content hash."""
        key = verdicts_key(model, device, request)
        with self._lock:
            verdicts = self._entries.get(key)
        if verdicts is None and cache is not None:
            verdicts = _read(cache, key)
            if verdicts is not None:
                self._keep(key, verdicts)
        return verdicts or {}

    def refusals(
        self, model: Model, device: str, request: CompileRequest, cache: Cache | None
    ) -> dict[str, Refusal]:
        """Return the nodes that a device runs wrongly, with the evidence."""
        verdicts = self.find(model, device, request, cache)
        return {
            node: refusal
            for verdict in verdicts.values()
            for node, refusal in refusals_of(verdict).items()
        }

    def add(
        self,
        model: Model,
        device: str,
        request: CompileRequest,
        verdicts: Verdicts,
        cache: Cache | None,
    ) -> None:
        """Add verdicts on a model's parts on a device."""
        key = verdicts_key(model, device, request)
        merged = {**self.find(model, device, request, cache), **verdicts}
        self._keep(key, merged)
        if cache is not None:
            cache.put(key + VERDICTS_SUFFIX, partial(_write, key=key, verdicts=merged))

    def save(self, model: Model, device: str, request: CompileRequest, cache: Cache | None) -> None:
        """Write known verdicts to a cache that lacks them."""
        key = verdicts_key(model, device, request)
        with self._lock:
            verdicts = self._entries.get(key)
        if cache is not None and verdicts and cache.find(key + VERDICTS_SUFFIX) is None:
            cache.put(key + VERDICTS_SUFFIX, partial(_write, key=key, verdicts=verdicts))

    def _keep(self, key: str, verdicts: Verdicts) -> None:
        with self._lock:
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries.clear()
            self._entries[key] = verdicts


def _write(file: BinaryIO, key: str, verdicts: Verdicts) -> int:
    writer = BlobWriter()
    document = msgspec.json.encode(verdicts).decode()
    return writer.write(file, {"kind": _KIND, "key": key, "verdicts": document})


def _read(cache: Cache, key: str) -> Verdicts | None:
    """Read the file of a key; remove an unusable one."""
    blob: BlobFile | None = cache.find(key + VERDICTS_SUFFIX)
    if blob is None:
        return None
    try:
        contents = blob.contents()
        if not isinstance(contents, dict) or contents.get("key") != key:
            raise BlobError("it has the key of another model.")
        return msgspec.json.decode(contents.get("verdicts", ""), type=dict[str, PartVerdict])
    except (BlobError, msgspec.MsgspecError, TypeError) as error:
        cache.drop(key + VERDICTS_SUFFIX, str(error))
        return None
