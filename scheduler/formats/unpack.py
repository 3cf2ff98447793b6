"""Reading msgpack that others wrote: what is not of the wanted type is refused.

msgspec makes room for what is there, not for what is claimed, and gives up on what is nested very
deep: nothing has to be walked over first.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

from msgspec.msgpack import Decoder

from hetero.devices.errors import BlobError

T = TypeVar("T")


def refuse(start: bytes, wanted: bytes, what: str) -> NoReturn:
    """Raise BlobError for what starts otherwise than with the wanted letters and version's byte."""
    if len(start) == len(wanted) and start[:-1] == wanted[:-1]:
        raise BlobError(
            f"{what} of version {start[-1]}; this program reads version {wanted[-1]}. Run the same "
            "version on every node."
        )
    raise BlobError(f"not a {what}: it starts with {start!r}.")


def unpack(data: bytes | memoryview, decoder: Decoder[T], where: str) -> T:
    """Return the value of msgpack; BlobError if it is damaged, or not what the decoder reads."""
    try:
        return decoder.decode(data)
    except BlobError:  # of an extension
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise BlobError(f"{where}: damaged, or cut short: {error}") from error
