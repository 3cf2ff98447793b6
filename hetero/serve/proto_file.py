"""Reads our own ``.proto`` files into message classes, in a pool of their own.

Generated modules would register their names for the whole process, where a client's library
(tritonclient, kserve) registers the same ones; and they are bound to one version of protobuf.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}
#: What our files are made of; of the language only that is read.
_STATEMENT: Final = re.compile(
    r"package (?P<package>[\w.]+);"
    r"|(?P<block>service|message|enum|oneof) (?P<name>\w+) {"
    r"|rpc (?P<rpc>\w+)\((?P<streams>stream )?(?P<request>\w+)\)\s+"
    r"returns \((stream )?(?P<response>\w+)\) {}"
    r"|map<string, (?P<value>\w+)> (?P<map>\w+) = (?P<map_number>\d+);"
    r"|(?P<repeated>repeated )?(?P<kind>\w+) (?P<field>\w+) = (?P<number>\d+);"
    r"|(?P<enumerator>\w+) = (?P<enum_number>\d+);"
    r"|(?P<end>})"
)


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
    text = re.sub(r"//.*|syntax.*", "", (Path(__file__).parent / name).read_text())
    made = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3")
    enums = set(re.findall(r"enum (\w+)", text))
    blocks: list[Any] = [made]
    service, methods = "", []
    for match in _STATEMENT.finditer(text):
        within, found = blocks[-1], match.groupdict()
        if found["package"]:
            made.package = found["package"]
        elif found["block"] == "message":
            holder = made.message_type if within is made else within.nested_type
            blocks.append(holder.add(name=found["name"]))
        elif found["block"] == "enum":
            blocks.append(made.enum_type.add(name=found["name"]))
        elif found["block"] == "oneof":
            within.oneof_decl.add(name=found["name"])
            blocks.append(within)
        elif found["block"]:
            service = f"{made.package}.{found['name']}"
            blocks.append(None)
        elif found["rpc"]:
            ends = found["request"], found["response"]
            methods.append(Method(found["rpc"], *ends, bool(found["streams"])))
        elif found["map"]:
            entry = within.nested_type.add(name=f"{found['map'].title().replace('_', '')}Entry")
            entry.options.map_entry = True
            _add(entry, "key", 1, "string", enums)
            _add(entry, "value", 2, found["value"], enums)
            _add(within, found["map"], found["map_number"], entry.name, enums, repeated=True)
        elif found["field"]:
            repeated = bool(found["repeated"])
            added = _add(within, found["field"], found["number"], found["kind"], enums, repeated)
            if len(blocks) > 1 and within is blocks[-2]:
                added.oneof_index = len(within.oneof_decl) - 1
        elif found["enumerator"]:
            within.value.add(name=found["enumerator"], number=int(found["enum_number"]))
        else:
            blocks.pop()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(made)
    types = {
        m.name: pool.FindMessageTypeByName(f"{made.package}.{m.name}") for m in made.message_type
    }
    classes = {name: message_factory.GetMessageClass(kind) for name, kind in types.items()}
    return ProtoFile(classes, service, methods)


def _add(
    message: Any, name: str, number: str | int, kind: str, enums: set[str], repeated: bool = False
) -> Any:
    """Add a field; the name of its type is resolved from where it stands, as the language says."""
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    field.type = _SCALARS.get(kind) or (_FIELD.TYPE_ENUM if kind in enums else _FIELD.TYPE_MESSAGE)
    if kind not in _SCALARS:
        field.type_name = kind
    return field
