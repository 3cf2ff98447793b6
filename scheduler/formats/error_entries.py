"""Errors in messages: a class of the error tree by name, its message, its data and its cause."""

from __future__ import annotations

from typing import Any, Final

from devices import errors
from devices.errors import BlobError, HeteroError, shown
from scheduler.formats.value_tree import Contents, Place, tree_of, value_of

_CLASSES: Final[dict[str, type[HeteroError]]] = {
    name: getattr(errors, name) for name in errors.__all__
}
#: Causes of causes that travel.
_CAUSES: Final = 4


def error_entry(error: BaseException, place: Place, causes: int = _CAUSES) -> list[Any]:
    """Return an error as a tree.

    One whose class is not of the tree travels as its nearest base, one that is not of ours at all
    as an InferenceError. Data that are no values travel as what `repr` says.
    """
    bases = ((base.__name__, base) for base in type(error).__mro__)
    name = next((name for name, base in bases if _CLASSES.get(name) is base), None)
    if name is None or not isinstance(error, HeteroError):
        name, message = "InferenceError", f"{type(error).__name__}: {shown(error)}"
        data: dict[str, Any] = {"cause": shown(error, repr)}
    else:
        message, data = str(error), error.data
    pairs: list[Any] = []
    for key, value in data.items():
        pairs += (key, _tree(value, place))
    cause = error.__cause__
    below = error_entry(cause, place, causes - 1) if cause is not None and causes else None
    return [name, message, pairs, below]


def error_of(entry: Any, contents: Contents, causes: int = _CAUSES) -> HeteroError:
    """Return the error of an entry; BlobError if it is no error's."""
    try:
        name, message, pairs, below = entry
        trees = zip(pairs[::2], pairs[1::2], strict=True)
        data = {key: value_of(tree, contents) for key, tree in trees}
        if not isinstance(message, str):
            raise BlobError("message with an error that says nothing.")
        error = _CLASSES[name](message, **data)
    except (TypeError, ValueError, KeyError, RecursionError) as caught:
        if isinstance(caught, BlobError):
            raise
        raise BlobError(f"message with a damaged error: {caught}.") from caught
    if below is not None:
        if not causes:
            raise BlobError("message with an error that has too many causes.")
        error.__cause__ = error_of(below, contents, causes - 1)
    return error


def _tree(value: Any, place: Place) -> Any:
    try:
        return tree_of(value, place)
    except (TypeError, BlobError):
        return repr(value)
