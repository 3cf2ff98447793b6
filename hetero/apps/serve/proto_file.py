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
from google.protobuf.descriptor import MethodDescriptor


class ProtoFile(NamedTuple):
    """What a file declares: message classes by name, its service's name, and the methods of it."""

    messages: dict[str, Any]
    service: str
    methods: tuple[MethodDescriptor, ...]


@cache
def proto_file(name: str) -> ProtoFile:
    """Return what a file beside this one declares."""
    made = descriptor_pb2.FileDescriptorSet()
    made.ParseFromString((Path(__file__).parent / "protocol.binpb").read_bytes())
    (file,) = (file for file in made.file if file.name == name)
    found = descriptor_pool.DescriptorPool().AddSerializedFile(file.SerializeToString())
    (service,) = found.services_by_name.values()
    kinds = found.message_types_by_name.items()
    messages = {kind: message_factory.GetMessageClass(descriptor) for kind, descriptor in kinds}
    return ProtoFile(messages, service.full_name, tuple(service.methods))
