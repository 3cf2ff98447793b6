"""A stage's payload in a blob: how it is written there, and read where the stage runs.

A device that is started again can be given the same `StoredPayload` as before: if the file is
still there, its stages are back without any weights being sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from hetero.devices.errors import BlobError
from hetero.devices.plugin.program import Payload
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.blob_format import Inline
from hetero.scheduler.formats.blob_writer import BlobWriter

#: The entry of a blob's header that holds a payload's document, or None, for each stage.
PAYLOADS: Final = "payloads"


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """Where a payload lies."""

    #: A blob's absolute path.
    path: str
    #: The blob's digest: a file of the same name may be another one on another node.
    digest: str
    index: int


def write_payload(writer: BlobWriter, payload: Payload) -> Inline:
    """Return a payload's document."""
    return Inline(writer.document({"header": payload.header, "tensors": payload.tensors}))


def read_payload(blob: BlobFile, index: int, contents: Any = None) -> Payload:
    """Return a payload of a blob; its tensors are views of the blob.

    `contents`: the blob's contents, where they were read already.
    Raises BlobError: it has no such payload, or it is damaged.
    """
    contents = blob.contents() if contents is None else contents
    documents = contents.get(PAYLOADS) if isinstance(contents, dict) else None
    if not isinstance(documents, list) or not 0 <= index < len(documents):
        raise BlobError(f"blob {blob.path or ''}: {PAYLOADS}[{index}]: no such payload.")
    payload = blob.contents(documents[index])
    found = payload if isinstance(payload, dict) else {}
    header, tensors = found.get("header"), found.get("tensors")
    if not isinstance(header, dict) or not isinstance(tensors, dict):
        raise BlobError(f"blob {blob.path or ''}: {PAYLOADS}[{index}]: not a payload.")
    return Payload(header, tensors)


def fetch_payload(stored: StoredPayload) -> Payload:
    """Return a payload from its file on this node.

    Raises BlobError: the file is not here, is another one, or is damaged.
    """
    blob, contents = _open(stored.path, stored.digest)
    return read_payload(blob, stored.index, contents)


@lru_cache(maxsize=1)  # the stages of a blob come one after another
def _open(path: str, digest: str) -> tuple[BlobFile, Any]:
    try:
        blob = BlobFile(path)
    except OSError as error:
        raise BlobError(f"blob {path}: not here: {error.strerror or error}.") from error
    if blob.digest != digest:
        raise BlobError(f"blob {path}: another one here than where it was compiled.")
    return blob, blob.contents()
