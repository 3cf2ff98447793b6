r"""The messages of the ``.proto`` files beside this one, in a pool of their own.

``protocol.binpb`` is what protoc makes of those files::

    cd hetero/serve
    python -m grpc_tools.protoc -I. --descriptor_set_out=protocol.binpb \
        open_inference.proto health.proto

Generated modules would register their names for the whole process, where a client's library
(tritonclient, kserve) registers the same ones; and they are bound to one version of protobuf.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Method(NamedTuple):
    """A service's method, and its messages' names."""

    name: str
    request: str
    response: str
    streams: bool


class ProtoFile(NamedTuple):
    """What a file declares: message classes by name, and its service."""

    messages: dict[str, Any]
    service: str
    methods: list[Method]


@cache
def proto_file(name: str) -> ProtoFile:
    """Return what a file beside this one declares."""
    made = descriptor_pb2.FileDescriptorSet()
    made.ParseFromString((Path(__file__).parent / "protocol.binpb").read_bytes())
    (file,) = (file for file in made.file if file.name == name)
    (service,) = file.service
    found = descriptor_pool.DescriptorPool().AddSerializedFile(file.SerializeToString())
    types = found.message_types_by_name
    return ProtoFile(
        {name: message_factory.GetMessageClass(kind) for name, kind in types.items()},
        f"{file.package}.{service.name}",
        [
            Method(m.name, _last(m.input_type), _last(m.output_type), m.client_streaming)
            for m in service.method
        ],
    )


def _last(name: str) -> str:
    """Return a message's name without its package."""
    return name.rpartition(".")[2]
