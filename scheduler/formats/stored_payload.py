"""Payloads of stages in a blob: written at export, read on the node where the stage runs.

A restarted device receives the same `StoredPayload` as before. If the file still exists, its
stages are loaded without sending any weights.
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

#: Entry of a blob's header: the document of a payload, or None, for each stage.
PAYLOADS: Final = "payloads"


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """Location of a payload in a blob file."""

    #: Absolute path of the blob.
    path: str
    #: Digest of the blob: another node may have a different file of that name.
    digest: str
    index: int


def write_payload(writer: BlobWriter, payload: Payload) -> Inline:
    """Encode a payload as a document."""
    return Inline(writer.document({"header": payload.header, "tensors": payload.tensors}))


def read_payload(blob: BlobFile, index: int, contents: Any = None) -> Payload:
    """Read a payload of a blob; its tensors are views of the blob.

    `contents`: contents of the blob, if they were read before.
    Raises BlobError: the payload does not exist or is damaged.
    """
    contents = blob.contents() if contents is None else contents
    documents = contents.get(PAYLOADS) if isinstance(contents, dict) else None
    if not isinstance(documents, list) or not 0 <= index < len(documents):
        raise BlobError(f"blob {blob.path or ''}: {PAYLOADS}[{index}]: no such payload.")
    payload = blob.contents(documents[index])
    fields = payload if isinstance(payload, dict) else {}
    header, tensors = fields.get("header"), fields.get("tensors")
    if not isinstance(header, dict) or not isinstance(tensors, dict):
        raise BlobError(f"blob {blob.path or ''}: {PAYLOADS}[{index}]: not a payload.")
    return Payload(header, tensors)


def fetch_payload(stored: StoredPayload) -> Payload:
    """Read a payload from its file on this node.

    Raises BlobError: the file is missing, different, or damaged.
    """
    blob, contents = _open(stored.path, stored.digest)
    return read_payload(blob, stored.index, contents)


@lru_cache(maxsize=1)  # the stages of a blob are loaded one after the other
def _open(path: str, digest: str) -> tuple[BlobFile, Any]:
    try:
        blob = BlobFile(path)
    except OSError as error:
        raise BlobError(f"blob {path}: cannot be opened: {error.strerror or error}.") from error
    if blob.digest != digest:
        raise BlobError(f"blob {path}: not the blob that was compiled: the digest differs.")
    return blob, blob.contents()
