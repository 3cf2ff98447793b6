"""Walking over msgpack before it is decoded, so that no length in it is taken on trust.

A decoder makes room for as many items as an array or map says it has. Here each length is held
against the bytes that are there, and nesting against a limit, before anything is made.
"""

from __future__ import annotations

from typing import Final

from devices.errors import BlobError

#: Containers inside containers.
DEPTH: Final = 32

_SCALAR, _BYTES, _EXTENSION, _ITEMS = range(4)
#: First byte -> (kind, bytes of the length or the value, times that the count of items applies).
_KINDS: Final[dict[int, tuple[int, int, int]]] = {
    0xC0: (_SCALAR, 0, 0), 0xC2: (_SCALAR, 0, 0), 0xC3: (_SCALAR, 0, 0),
    0xC4: (_BYTES, 1, 0), 0xC5: (_BYTES, 2, 0), 0xC6: (_BYTES, 4, 0),
    0xC7: (_EXTENSION, 1, 0), 0xC8: (_EXTENSION, 2, 0), 0xC9: (_EXTENSION, 4, 0),
    0xCA: (_SCALAR, 4, 0), 0xCB: (_SCALAR, 8, 0),
    0xCC: (_SCALAR, 1, 0), 0xCD: (_SCALAR, 2, 0), 0xCE: (_SCALAR, 4, 0), 0xCF: (_SCALAR, 8, 0),
    0xD0: (_SCALAR, 1, 0), 0xD1: (_SCALAR, 2, 0), 0xD2: (_SCALAR, 4, 0), 0xD3: (_SCALAR, 8, 0),
    0xD4: (_SCALAR, 2, 0), 0xD5: (_SCALAR, 3, 0), 0xD6: (_SCALAR, 5, 0), 0xD7: (_SCALAR, 9, 0),
    0xD8: (_SCALAR, 17, 0),
    0xD9: (_BYTES, 1, 0), 0xDA: (_BYTES, 2, 0), 0xDB: (_BYTES, 4, 0),
    0xDC: (_ITEMS, 2, 1), 0xDD: (_ITEMS, 4, 1), 0xDE: (_ITEMS, 2, 2), 0xDF: (_ITEMS, 4, 2),
}  # fmt: skip


def check_msgpack(data: bytes, where: str, *, depth: int = DEPTH) -> None:
    """Check that `data` is one msgpack value whose every length fits.

    `depth`: how many containers may lie inside each other.
    Raises BlobError, naming the position of what does not fit.
    """
    end = len(data)
    position = 0
    left = 1
    #: Items left in each container around the present one.
    outer: list[int] = []
    while True:
        while not left:
            if not outer:
                if position != end:
                    raise BlobError(f"{where}: {end - position} bytes too many.")
                return
            left = outer.pop()
        left -= 1
        if position >= end:
            raise BlobError(f"{where}: cut short at byte {position}.")
        first = data[position]
        position += 1
        if first < 0x80 or first >= 0xE0:
            continue
        if 0xA0 <= first < 0xC0:
            position += first & 0x1F
            items = 0
        elif first < 0xA0:
            items = (first & 0x0F) * (2 if first < 0x90 else 1)
        else:
            kind, width, factor = _KINDS.get(first, (-1, 0, 0))
            if kind < 0:
                raise BlobError(f"{where}: byte {position - 1} is {first:#x}, no msgpack.")
            length = 0
            if kind != _SCALAR:
                length = int.from_bytes(data[position : position + width], "big")
            position += width
            items = length * factor
            if kind in (_BYTES, _EXTENSION):
                position += length + (kind == _EXTENSION)
        if position > end or items > end - position:
            raise BlobError(f"{where}: a length at byte {position} is more than there is.")
        if items:
            outer.append(left)
            if len(outer) > depth:
                raise BlobError(f"{where}: nested deeper than {depth} at byte {position}.")
            left = items
