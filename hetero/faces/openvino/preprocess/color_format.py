"""Color formats of images: channels and planes."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from hetero.devices.errors import ArgumentError
from hetero.devices.model.tensor_spec import Dimension

if TYPE_CHECKING:
    from collections.abc import Sequence


class ColorFormat(Enum):
    """Color format of an image, with OpenVINO's names."""

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


#: Format -> its planes: channels, height and width of each; sizes are in halves of the image's.
PLANES: Final = {
    ColorFormat.RGB: ((3, 2, 2),),
    ColorFormat.BGR: ((3, 2, 2),),
    ColorFormat.GRAY: ((1, 2, 2),),
    ColorFormat.RGBX: ((4, 2, 2),),
    ColorFormat.BGRX: ((4, 2, 2),),
    # Planes stored one below the other are one plane of 3/2 of the height.
    ColorFormat.NV12_SINGLE_PLANE: ((1, 3, 2),),
    ColorFormat.I420_SINGLE_PLANE: ((1, 3, 2),),
    ColorFormat.NV12_TWO_PLANES: ((1, 2, 2), (2, 1, 1)),
    ColorFormat.I420_THREE_PLANES: ((1, 2, 2), (1, 1, 1), (1, 1, 1)),
}


def plane_shapes(
    color: ColorFormat, shape: Sequence[Dimension], axes: tuple[int, int, int], label: str
) -> list[tuple[Dimension, ...]]:
    """Return the shape of each plane of an image; `axes` are channels, height and width."""
    channels, height, width = axes
    shapes = []
    for count, *halves in PLANES[color]:
        sizes = list(shape)
        sizes[channels] = count
        for axis, part in zip((height, width), halves, strict=True):
            size = shape[axis]
            if part != 2:
                sizes[axis] = size * part // 2 if isinstance(size, int) else None
        shapes.append(tuple(sizes))
    sizes = [shape[height], shape[width]]
    is_even = not any(isinstance(size, int) and size % 2 for size in sizes)
    if PLANES[color][-1][1:] != (2, 2) and not is_even:
        raise ArgumentError(
            f"{label}: {color.name} subsamples colors by 2; expected even height and width, got "
            f"{sizes[0]} by {sizes[1]}."
        )
    return shapes
