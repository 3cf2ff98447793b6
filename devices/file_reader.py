"""Bounded readers of files and documents that come from outside.

Files are regular and of bounded size, JSON and YAML are of bounded depth, and every problem is a
typed error with the file's path, and with the line and column if the content is malformed.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from hetero.devices.errors import HeteroError

if TYPE_CHECKING:
    import yaml

#: Depth of nested lists and mappings. No document of ours has more than ten levels.
MAX_DEPTH: Final = 64
#: Bytes that are read at once beyond the size of a file.
_PART_NBYTES: Final = 65536
#: Nodes of a YAML document with its aliases expanded; a small file may expand to billions.
MAX_YAML_NODES: Final = 2**20


def open_regular(path: Path, *, follow_links: bool = True, is_own: bool = False) -> io.FileIO:
    """Open a regular file for reading; a pipe would block, a device might never end.

    `is_own`: whether the file has to belong to this user.
    Raises OSError: it cannot be opened, is not a regular file, or belongs to another user.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif is_own and status.st_uid != os.getuid():
        problem = f"it belongs to user {status.st_uid}, expected {os.getuid()}"
    if problem:
        os.close(descriptor)
        raise OSError(errno.EINVAL, problem, str(path))
    return io.FileIO(descriptor)


def read_regular(
    path: Path, max_nbytes: int = 2**28, *, follow_links: bool = True, is_own: bool = False
) -> bytes:
    """Return the contents of a file.

    Raises OSError: it cannot be read, is not a regular file, or is larger than `max_nbytes`.
    """
    with open_regular(path, follow_links=follow_links, is_own=is_own) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > max_nbytes:
            raise OSError(errno.EFBIG, f"{nbytes} bytes, expected at most {max_nbytes}", str(path))
        parts, position = list[bytes](), 0
        # The system reads at most 2 GiB at once, and files of /proc have no size.
        while part := file.read(min(max(nbytes - position, _PART_NBYTES), max_nbytes + 1)):
            parts.append(part)
            position += len(part)
            if position > max_nbytes:
                raise OSError(errno.EFBIG, f"more than {max_nbytes} bytes", str(path))
    return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True)
class FileReader:
    """Reader of one kind of file.

    Attributes
    ----------
    kind : str
        The kind in messages, such as ``cost file``.
    error : type of HeteroError
        The error of a file that cannot be read; its data are `path`, `line` and `column`.
    fix : str
        A sentence that tells how to repair it.
    max_nbytes : int
        The largest size.
    """

    kind: str
    error: type[HeteroError]
    fix: str = ""
    max_nbytes: int = 2**24

    def problem(
        self, path: str | Path, reason: object, line: int | None = None, column: int | None = None
    ) -> HeteroError:
        """Return the error of a file, with the place in it if that is known."""
        place = ":".join(str(part) for part in (path, line, column) if part is not None)
        message = f"{self.kind} {place}: {reason}. {self.fix}".rstrip()
        return self.error(message, path=str(path), line=line, column=column)

    def read_bytes(self, path: str | Path) -> bytes:
        """Return the contents of a file."""
        try:
            return read_regular(Path(path), self.max_nbytes)
        except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
            reason = getattr(error, "strerror", None) or error
            raise self.problem(path, f"cannot be read: {reason}") from error

    def read_text(self, path: str | Path) -> str:
        """Return the contents of a text file, which is UTF-8."""
        data = self.read_bytes(path)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            column = error.start - data.rfind(b"\n", 0, error.start)
            reason = f"cannot be read: it is not UTF-8: {error.reason}"
            raise self.problem(path, reason, line, column) from error

    def read_json(self, path: str | Path, pairs: Callable[[Any], Any] | None = None) -> Any:
        """Return the document of a JSON file; `pairs` makes an object from its keys and values."""
        text = self.read_text(path)
        try:
            return parse_json(text, pairs)
        except DocumentError as error:
            raise self._syntax_error(path, "JSON", error) from error

    def read_yaml(self, path: str | Path) -> Any:
        """Return the document of a YAML file, of plain types."""
        return self._parse_yaml(path, "get_single_data")

    def read_yaml_nodes(self, path: str | Path) -> Any:
        """Return the root node of a YAML file, whose nodes have lines; None if it is empty."""
        return self._parse_yaml(path, "get_single_node")

    def _parse_yaml(self, path: str | Path, method: str) -> Any:
        text = self.read_text(path)
        try:
            return _parse_yaml(text, method)
        except DocumentError as error:
            raise self._syntax_error(path, "YAML", error) from error

    def _syntax_error(self, path: str | Path, language: str, error: DocumentError) -> HeteroError:
        return self.problem(path, f"not {language}: {error}", error.line, error.column)


class DocumentError(ValueError):
    """A document is malformed or nested too deeply; `line` and `column` count from 1."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(reason)
        self.line, self.column = line, column


def parse_json(text: str, pairs: Callable[[Any], Any] | None = None) -> Any:
    """Return a JSON document; NaN and infinity are not JSON.

    `pairs`: makes an object from its list of keys and values; a dict by default.
    Raises DocumentError: it is malformed or nested too deeply.
    """
    try:
        document = json.loads(text, object_pairs_hook=pairs, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise DocumentError(error.msg, error.lineno, error.colno) from error
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # an integer of thousands of digits
        raise DocumentError(f"{error}") from error
    level, depth = _containers([document]), 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        members = (item.values() if isinstance(item, dict) else item for item in level)
        level = [inner for outer in members for inner in _containers(outer)]
    return document


def _containers(items: Iterable[Any]) -> list[Any]:
    return [item for item in items if isinstance(item, dict | list | tuple)]


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _too_deep(line: int | None = None, column: int | None = None) -> DocumentError:
    return DocumentError(f"nested more than {MAX_DEPTH} deep", line, column)


def parse_yaml(text: str) -> Any:
    """Return a YAML document, of plain types.

    Raises DocumentError: it is malformed, nested too deeply, or too large with its aliases.
    """
    return _parse_yaml(text, "get_single_data")


def _parse_yaml(text: str, method: str) -> Any:
    import yaml  # imported late: few programs use it

    try:
        loader = _yaml_loader()(text)
        try:
            return getattr(loader, method)()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "malformed"
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise DocumentError(reason, line, column) from error
    except yaml.YAMLError as error:
        raise DocumentError(f"{error}".replace("\n", " ")) from error
    except RecursionError:
        raise _too_deep() from None


def _yaml_loader() -> type[yaml.SafeLoader]:
    """Return PyYAML's safe loader with bounds; its own has none."""
    import yaml

    class BoundedLoader(yaml.SafeLoader):
        """Loader that bounds the depth and the number of nodes, and locates invalid scalars."""

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self._depth = self._count = 0
            #: Identity of a complete node -> its number of nodes, itself included.
            self._sizes: dict[int, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Compose a node and those in it."""
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            count, self._count, self._depth = self._count, self._count + 1, self._depth + 1
            if self._depth > MAX_DEPTH:
                raise _syntax_error(f"{_too_deep()}", event)
            node = super().compose_node(parent, index)
            if isinstance(event, yaml.AliasEvent):
                if id(node) not in self._sizes:
                    raise _syntax_error(f"alias {event.anchor!r} refers to a node around it", event)
                self._count += self._sizes[id(node)]
            else:
                self._sizes[id(node)] = self._count - count
            if self._count > MAX_YAML_NODES:
                raise _syntax_error(
                    f"more than {MAX_YAML_NODES} nodes with aliases expanded", event
                )
            self._depth -= 1
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            """Construct a value; one of an impossible number or date is malformed YAML."""
            try:
                return super().construct_object(node, deep)
            except (ValueError, ArithmeticError) as error:
                raise _syntax_error(f"{error}", node) from error

    return BoundedLoader


def _syntax_error(problem: str, place: Any) -> Exception:
    """Return PyYAML's error at an event or node."""
    import yaml

    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)
