"""Colour formats: what the channels of a picture are, and which planes it is stored in."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from devices.errors import ArgumentError
from devices.model.tensor_spec import Dimension

if TYPE_CHECKING:
    from collections.abc import Sequence


class ColorFormat(Enum):
    """What a picture's channels are; the names are OpenVINO's."""

    UNDEFINED = 0
    NV12_SINGLE_PLANE = 1
    NV12_TWO_PLANES = 2
    I420_SINGLE_PLANE = 3
    I420_THREE_PLANES = 4
    RGB = 5
    BGR = 6
    GRAY = 7
    RGBX = 8
    BGRX = 9


#: Format -> its channels, in planes of the picture's own size.
CHANNELS: Final = {
    ColorFormat.RGB: 3, ColorFormat.BGR: 3, ColorFormat.GRAY: 1,
    ColorFormat.RGBX: 4, ColorFormat.BGRX: 4,
}  # fmt: skip
#: Format -> the channels of each plane; those after the first have half the height and width.
PLANES: Final = {
    ColorFormat.NV12_TWO_PLANES: (1, 2),
    ColorFormat.I420_THREE_PLANES: (1, 1, 1),
}
#: Formats whose planes stand one under the other, as one of one channel and 3/2 of the height.
STACKED: Final = (ColorFormat.NV12_SINGLE_PLANE, ColorFormat.I420_SINGLE_PLANE)


def plane_shapes(
    color: ColorFormat, shape: Sequence[Dimension], axes: tuple[int, int, int], where: str
) -> list[tuple[Dimension, ...]]:
    """Return the shape of each plane of a picture of `shape`.

    `axes`: of channels, height and width. ArgumentError for a size that cannot be halved.
    """
    channels, height, width = axes

    def plane(count: int, numerator: int = 1, denominator: int = 1) -> tuple[Dimension, ...]:
        sizes = list(shape)
        sizes[channels] = count
        sizes[height] = _part(sizes[height], numerator, denominator)
        if denominator == 2 and numerator == 1:
            sizes[width] = _part(sizes[width], 1, 2)
        return tuple(sizes)

    halved = color in PLANES or color in STACKED
    sizes = (shape[height], shape[width])
    if halved and any(isinstance(size, int) and size % 2 for size in sizes):
        raise ArgumentError(
            f"{where}: {color.name} has one colour for 2 by 2 pixels, so height and width are "
            f"even; got {sizes[0]} by {sizes[1]}."
        )
    if color in STACKED:
        return [plane(1, 3, 2)]
    if color in PLANES:
        first, *rest = PLANES[color]
        return [plane(first), *(plane(count, 1, 2) for count in rest)]
    return [plane(CHANNELS[color])]


def _part(size: Dimension, numerator: int, denominator: int) -> Dimension:
    if numerator == denominator:
        return size
    return size * numerator // denominator if isinstance(size, int) else None
