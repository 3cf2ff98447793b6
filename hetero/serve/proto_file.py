"""Reads our own ``.proto`` files into message classes, in a pool of their own.

Generated modules would register their names for the whole process, where a client's library
(tritonclient, kserve) registers the same ones; and they are bound to one version of protobuf.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}


class Method(NamedTuple):
    """A service's method, and its messages' names."""

    name: str
    request: str
    response: str
    streams: bool


@dataclass(frozen=True)
class ProtoFile:
    """What a file declares: message classes by name, and its service."""

    messages: dict[str, Any]
    service: str
    methods: list[Method] = field(default_factory=list)


@cache
def proto_file(name: str) -> ProtoFile:
    """Return what a file beside this one declares."""
    return _Reader((Path(__file__).parent / name).read_text()).file(name)


class _Reader:
    """Reads the part of the language that our files use: one service, messages, enums."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"//.*", "", text)
        self._words: list[str] = re.findall(r'[\w.]+|"[^"]*"|[{}()<>=;,]', text)[::-1]
        self._methods: list[Method] = []
        self._service = ""

    def file(self, name: str) -> ProtoFile:
        made = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3")
        while self._words:
            match self._next():
                case "syntax":
                    self._skip("=", '"proto3"', ";")
                case "package":
                    made.package = self._next()
                    self._skip(";")
                case "service":
                    self._service = f"{made.package}.{self._next()}"
                    self._read_service()
                case "enum":
                    self._read_enum(made.enum_type.add())
                case "message":
                    self._read_message(made.message_type.add(), made)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(made)
        classes = {
            message.name: message_factory.GetMessageClass(
                pool.FindMessageTypeByName(f"{made.package}.{message.name}")
            )
            for message in made.message_type
        }
        return ProtoFile(classes, self._service, self._methods)

    def _next(self) -> str:
        return self._words.pop()

    def _skip(self, *words: str) -> None:
        for word in words:
            if (got := self._next()) != word:
                raise ValueError(f"wanted {word!r}, got {got!r}")

    def _read_service(self) -> None:
        self._skip("{")
        while self._next() == "rpc":
            name = self._next()
            ends = []
            for opening in ((), ("returns",)):
                self._skip(*opening, "(")
                word = self._next()
                ends.append((self._next() if word == "stream" else word, word == "stream"))
                self._skip(")")
            self._skip("{", "}")
            self._methods.append(Method(name, ends[0][0], ends[1][0], ends[0][1]))

    def _read_enum(self, made: Any) -> None:
        made.name = self._next()
        self._skip("{")
        while (name := self._next()) != "}":
            self._skip("=")
            made.value.add(name=name, number=int(self._next()))
            self._skip(";")

    def _read_message(self, made: Any, file: Any) -> None:
        made.name = self._next()
        self._skip("{")
        while (word := self._next()) != "}":
            if word == "message":
                self._read_message(made.nested_type.add(), file)
            elif word == "oneof":
                made.oneof_decl.add(name=self._next())
                self._skip("{")
                while (kind := self._next()) != "}":
                    self._read_field(made, file, kind, oneof=len(made.oneof_decl) - 1)
            elif word == "map":
                self._read_map(made, file)
            elif word == "repeated":
                self._read_field(made, file, self._next(), repeated=True)
            else:
                self._read_field(made, file, word)

    def _read_field(
        self, made: Any, file: Any, kind: str, *, repeated: bool = False, oneof: int | None = None
    ) -> None:
        name = self._next()
        self._skip("=")
        label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
        added = made.field.add(name=name, number=int(self._next()), label=label)
        self._skip(";")
        if oneof is not None:
            added.oneof_index = oneof
        _set_type(added, kind, made, file)

    def _read_map(self, made: Any, file: Any) -> None:
        self._skip("<", "string", ",")
        kind = self._next()
        self._skip(">")
        name = self._next()
        self._skip("=")
        entry = made.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=_SCALARS["string"], label=_FIELD.LABEL_OPTIONAL)
        value = entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL)
        _set_type(value, kind, made, file)

        made.field.add(
            name=name, number=int(self._next()), label=_FIELD.LABEL_REPEATED,
            type=_FIELD.TYPE_MESSAGE,
            type_name=entry.name,
        )  # fmt: skip
        self._skip(";")


def _set_type(added: Any, kind: str, made: Any, file: Any) -> None:
    """Set a field's type; a name is resolved from where it stands, as the language says."""
    if kind in _SCALARS:
        added.type = _SCALARS[kind]
        return
    is_enum = any(enum.name == kind for enum in file.enum_type)
    added.type = _FIELD.TYPE_ENUM if is_enum else _FIELD.TYPE_MESSAGE
    added.type_name = kind
