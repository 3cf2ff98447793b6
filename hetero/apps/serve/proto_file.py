r"""Messages of the ``.proto`` files in this folder, in a descriptor pool of their own.

``protocol.binpb`` is protoc's output for those files::

    cd hetero/apps/serve
    python -m grpc_tools.protoc -I. --descriptor_set_out=protocol.binpb \
        open_inference.proto health.proto

Why not generated ``_pb2`` modules: they register their names in the process-wide pool, where a
client library (tritonclient, kserve) registers the same names with other contents and fails; and
each version of protobuf needs its own. The message classes and their parser are the same.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor


class ProtoFile(NamedTuple):
    """The declarations of a file: its message classes by name, and its service with its methods."""

    messages: dict[str, Any]
    service: str
    methods: tuple[MethodDescriptor, ...]


@cache
def proto_file(name: str) -> ProtoFile:
    """Return the declarations of a file in this folder."""
    file_set = descriptor_pb2.FileDescriptorSet()
    file_set.ParseFromString((Path(__file__).parent / "protocol.binpb").read_bytes())
    (file,) = (file for file in file_set.file if file.name == name)
    pool = descriptor_pool.DescriptorPool()
    declarations = pool.AddSerializedFile(file.SerializeToString())
    (service,) = declarations.services_by_name.values()
    types = declarations.message_types_by_name.items()
    messages = {name: message_factory.GetMessageClass(descriptor) for name, descriptor in types}
    return ProtoFile(messages, service.full_name, tuple(service.methods))
