"""Serialised errors: class name, message, data and cause."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from hetero.devices import errors
from hetero.devices.errors import BlobError, HeteroError, error_text
from hetero.scheduler.formats.value_tree import Place, check_nesting, tree_of

_CLASSES: Final[dict[str, type[HeteroError]]] = {
    name: getattr(errors, name) for name in errors.__all__
}
#: Maximum length of a serialised chain of causes.
_MAX_CAUSES: Final = 4


class ErrorEntry(NamedTuple):
    """A serialised error; its data are value trees."""

    name: str
    message: str
    data: dict[str, Any]
    cause: ErrorEntry | None


def error_entry(error: BaseException, place: Place, causes: int = _MAX_CAUSES) -> ErrorEntry:
    """Serialise an error.

    A subclass of the error tree becomes its nearest base in the tree, and any other exception an
    InferenceError. Data that cannot be serialised become their `repr`.
    """
    bases = ((base.__name__, base) for base in type(error).__mro__)
    name = next((name for name, base in bases if _CLASSES.get(name) is base), None)
    if name is None or not isinstance(error, HeteroError):
        name, message = "InferenceError", f"{type(error).__name__}: {error_text(error)}"
        data: dict[str, Any] = {"cause": error_text(error, repr)}
    else:
        message, data = str(error), error.data
    trees = {key: _tree(value, place) for key, value in data.items()}
    cause = error.__cause__
    below = error_entry(cause, place, causes - 1) if cause is not None and causes else None
    return ErrorEntry(name, message, trees, below)


def error_of(entry: ErrorEntry, causes: int = _MAX_CAUSES) -> HeteroError:
    """Deserialise an error.

    Raises BlobError, LookupError, TypeError, ValueError: the entry is invalid.
    """
    check_nesting(entry.data)
    error = _CLASSES[entry.name](entry.message, **entry.data)
    if entry.cause is not None:
        if not causes:
            raise BlobError("message with an error whose chain of causes is too long.")
        error.__cause__ = error_of(entry.cause, causes - 1)
    return error


def _tree(value: Any, place: Place) -> Any:
    try:
        return tree_of(value, place)
    except (TypeError, BlobError):
        return repr(value)
