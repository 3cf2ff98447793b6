"""Walking over msgpack before it is decoded, so that no length in it is taken on trust.

A decoder makes room for as many items as an array or map says it has. A walk that makes nothing
comes first: an array of n items then has at least n bytes.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from devices.errors import BlobError

#: Bytes of which all lengths together can claim a few MB at most.
_SMALL_NBYTES: Final = 2048
_unpackb: Final = msgpack.unpackb


def check_msgpack(data: bytes | memoryview, where: str) -> None:
    """Check that `data` is one msgpack value whose every length fits.

    Raises BlobError: it is not, or it is nested so deep that msgpack itself gives up.
    """
    walker = msgpack.Unpacker(read_size=1, max_buffer_size=0)
    try:
        walker.feed(data)
        walker.skip()
    except (ValueError, msgpack.UnpackException) as error:
        what = str(error) or type(error).__name__
        raise BlobError(f"{where}: cut short, or no msgpack: {what}") from error
    if walker.tell() != len(data):
        raise BlobError(f"{where}: {len(data) - walker.tell()} bytes too many.")


def unpack(data: bytes | memoryview, where: str, *, is_file: bool = False, **options: Any) -> Any:
    """Return the value of msgpack, checked first unless it is a small message.

    msgpack takes no length over that of the data, nor more than 1,024 containers inside each
    other, so that small data cannot make it reserve much; a file may have very many of those.

    Raises BlobError: it does not pass, or holds what msgpack does not take.
    """
    if is_file or len(data) > _SMALL_NBYTES:
        check_msgpack(data, where)
    try:
        return _unpackb(data, **options)
    except BlobError:
        raise
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise BlobError(f"{where}: damaged: {error}") from error
