"""Options that put preprocessing into a model: for pictures, and for numbers to normalise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, TypeVar

import click

from hetero.cli.inputs import given_files, is_picture, port_name, read_picture
from hetero.cli.option_types import pairs, together
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec

Value = TypeVar("Value")


@dataclass(frozen=True)
class Preprocessing:
    """What the options say, by input; the empty name is that of the only one."""

    layouts: Mapping[str, str] = field(default_factory=dict)
    means: Mapping[str, Sequence[float]] = field(default_factory=dict)
    scales: Mapping[str, Sequence[float]] = field(default_factory=dict)
    color: str = "RGB"

    def __bool__(self) -> bool:
        return bool(self.layouts or self.means or self.scales)

    def apply(self, model: Model, inputs: Sequence[str] = ()) -> Model:
        """Return the model with what the options and the pictures among `inputs` need."""
        files = {n: path for n, path in given_files(inputs, model).items() if is_picture(path)}
        if not files and not self:
            return model
        # Only commands with these options need the face.
        from hetero.faces.openvino.preprocess import PrePostProcessor

        pictures = _of_ports(files, model, "--input")
        layouts = _of_ports(self.layouts, model, "--layout")
        means = _of_ports(self.means, model, "--mean")
        scales = _of_ports(self.scales, model, "--scale")
        ppp = PrePostProcessor(model)
        ports = {port.name: port for port in model.inputs}
        for name in {**pictures, **layouts, **means, **scales}:
            port, info = ports[name], ppp.input(name)
            layout = layouts.get(name) or port.layout
            of_channels = max(len(means.get(name, ())), len(scales.get(name, ()))) > 1
            if not layout and (name in pictures or of_channels):
                layout = _guessed(port)
            if layout:
                info.model().set_layout(layout)
            if name in pictures:
                height, width, _ = read_picture(pictures[name]).shape
                self._picture(info, port, layout, height, width)
            if name in means:
                info.preprocess().mean(means[name])
            if name in scales:
                info.preprocess().scale(scales[name])
        return ppp.build()

    def _picture(self, info: Any, port: TensorSpec, layout: str, height: int, width: int) -> None:
        """Write what becomes of a picture before the model."""
        sizes = dict(zip(layout.upper(), port.shape or (), strict=False))
        batch = sizes.get("N", 1)
        if sizes.get("C") not in (1, 3) or (isinstance(batch, int) and batch != 1):
            raise click.UsageError(
                f"--input: input {port.name!r} is {port} ({layout}); a picture is one, of 1 or 3 "
                "channels. Say with --layout which dimension is which, or give a .npy file."
            )
        tensor = info.tensor().set_element_type("u8").set_color_format("RGB")
        tensor.set_layout("NHWC" if "N" in sizes else "HWC").set_spatial_static_shape(height, width)
        steps = info.preprocess()
        steps.convert_color("GRAY" if sizes["C"] == 1 else self.color)
        if port.element_type != "uint8":
            steps.convert_element_type()
        if isinstance(sizes.get("H"), int) and isinstance(sizes.get("W"), int):
            steps.resize("linear")


_numbers: Final = pairs(
    "numbers, as 123.7,116.3,103.5",
    lambda text: tuple(float(number) for number in text.split(",")),
    of_input=True,
    bare=True,
)


def _joined(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def command(*, layouts: Any, means: Any, scales: Any, color: str, **rest: Any) -> Any:
        return function(preprocessing=Preprocessing(layouts, means, scales, color), **rest)

    return command


#: Adds ``--layout``, ``--mean``, ``--scale`` and ``--color``, given as one `Preprocessing`.
preprocess_options: Final = together(
    click.option(
        "--layout",
        "layouts",
        multiple=True,
        metavar="[NAME=]NCHW",
        callback=pairs("[NAME=]NCHW", of_input=True, bare=True),
        help="What the dimensions of the model's input are: N batch, C channels, H height, W "
        "width, ? any.",
    ),
    click.option(
        "--mean",
        "means",
        multiple=True,
        metavar="[NAME=]R,G,B",
        callback=_numbers,
        help="Numbers that the model takes off its input first, one or one for each channel.",
    ),
    click.option(
        "--scale",
        "scales",
        multiple=True,
        metavar="[NAME=]R,G,B",
        callback=_numbers,
        help="Numbers that it divides by then, one or one for each channel.",
    ),
    click.option(
        "--color",
        type=click.Choice(["RGB", "BGR"]),
        default="RGB",
        show_default=True,
        help="The order of the channels in which the model takes pictures.",
    ),
    _joined,
)


def _of_ports(given: Mapping[str, Value], model: Model, option: str) -> dict[str, Value]:
    """Return what an option says with the name of the only input where it gave none."""
    return {port_name(name, model, option): value for name, value in given.items()}


def _guessed(port: TensorSpec) -> str:
    """Return the layout of a picture input, by where its 1 or 3 channels are."""
    shape = port.shape or ()
    before = "N" * (len(shape) - 3)
    found = [
        before + layout
        for layout, at in (("CHW", -3), ("HWC", -1))
        if len(shape) in (3, 4) and shape[at] in (1, 3)
    ]
    if len(found) != 1:
        raise click.UsageError(
            f"input {port.name!r} is {port}, in which picture channels are not to be found; say "
            f"which dimension is which, as --layout {port.name}={'NCHW'[len(shape) == 3 :]}."
        )
    return found[0]
