"""Options that add preprocessing to a model: image conversion, layout, mean and scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, TypeVar

import click

from hetero.cli.inputs import input_files, is_image, port_name, read_image
from hetero.cli.option_types import combine_options, name_value_pairs
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec

Value = TypeVar("Value")


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing options by input; an empty name stands for the only input."""

    layouts: Mapping[str, str] = field(default_factory=dict)
    means: Mapping[str, Sequence[float]] = field(default_factory=dict)
    scales: Mapping[str, Sequence[float]] = field(default_factory=dict)
    color: str = "RGB"

    def __bool__(self) -> bool:
        return bool(self.layouts or self.means or self.scales)

    def apply(self, model: Model, inputs: Sequence[str] = ()) -> Model:
        """Return the model with the preprocessing of the options and of images in `inputs`."""
        files = {n: path for n, path in input_files(inputs, model).items() if is_image(path)}
        if not files and not self:
            return model
        # Only commands with these options need the preprocessing API.
        from hetero.faces.openvino.preprocess import PrePostProcessor

        images = by_port_name(files, model, "--input")
        layouts = by_port_name(self.layouts, model, "--layout")
        means = by_port_name(self.means, model, "--mean")
        scales = by_port_name(self.scales, model, "--scale")
        ppp = PrePostProcessor(model)
        ports = {port.name: port for port in model.inputs}
        for name in {**images, **layouts, **means, **scales}:
            port, info = ports[name], ppp.input(name)
            layout = layouts.get(name) or port.layout
            per_channel = max(len(means.get(name, ())), len(scales.get(name, ()))) > 1
            if not layout and (name in images or per_channel):
                layout = _guess_layout(port)
            if layout:
                info.model().set_layout(layout)
            if name in images:
                height, width, _ = read_image(images[name]).shape
                self._add_image_steps(info, port, layout, height, width)
            if name in means:
                info.preprocess().mean(means[name])
            if name in scales:
                info.preprocess().scale(scales[name])
        return ppp.build()

    def _add_image_steps(
        self, info: Any, port: TensorSpec, layout: str, height: int, width: int
    ) -> None:
        """Add the steps that convert an image to the model's input."""
        sizes = dict(zip(layout.upper(), port.shape or (), strict=False))
        batch = sizes.get("N", 1)
        if sizes.get("C") not in (1, 3) or (isinstance(batch, int) and batch != 1):
            raise click.UsageError(
                f"--input: input {port.name!r} is {port} ({layout}); an image needs a batch of 1 "
                "with 1 or 3 channels. Set the dimensions with --layout, or pass a .npy file."
            )
        tensor = info.tensor().set_element_type("u8").set_color_format("RGB")
        tensor.set_layout("NHWC" if "N" in sizes else "HWC").set_spatial_static_shape(height, width)
        steps = info.preprocess()
        steps.convert_color("GRAY" if sizes["C"] == 1 else self.color)
        if port.element_type != "uint8":
            steps.convert_element_type()
        if isinstance(sizes.get("H"), int) and isinstance(sizes.get("W"), int):
            steps.resize("linear")


_numbers: Final = name_value_pairs(
    "numbers such as 123.7,116.3,103.5",
    lambda text: tuple(float(number) for number in text.split(",")),
    of_input=True,
    bare=True,
)


def _as_preprocessing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the four option arguments of a command by one `Preprocessing`."""

    @wraps(function)
    def command(*, layouts: Any, means: Any, scales: Any, color: str, **rest: Any) -> Any:
        return function(preprocessing=Preprocessing(layouts, means, scales, color), **rest)

    return command


#: Adds ``--layout``, ``--mean``, ``--scale`` and ``--color`` as one `Preprocessing`.
preprocess_options: Final = combine_options(
    click.option(
        "--layout",
        "layouts",
        multiple=True,
        metavar="[NAME=]NCHW",
        callback=name_value_pairs("[NAME=]NCHW", of_input=True, bare=True),
        help="Dimensions of the model's input: N batch, C channels, H height, W width, ? other.",
    ),
    click.option(
        "--mean",
        "means",
        multiple=True,
        metavar="[NAME=]R,G,B",
        callback=_numbers,
        help="Mean to subtract from the input, one number or one for each channel.",
    ),
    click.option(
        "--scale",
        "scales",
        multiple=True,
        metavar="[NAME=]R,G,B",
        callback=_numbers,
        help="Scale to divide the input by after that, one number or one for each channel.",
    ),
    click.option(
        "--color",
        type=click.Choice(["RGB", "BGR"]),
        default="RGB",
        show_default=True,
        help="Channel order of images that the model expects.",
    ),
    _as_preprocessing,
)


def by_port_name(values: Mapping[str, Value], model: Model, option: str) -> dict[str, Value]:
    """Return an option's values with an empty name replaced by that of the only input."""
    return {port_name(name, model, option): value for name, value in values.items()}


def _guess_layout(port: TensorSpec) -> str:
    """Guess the layout of an image input by the position of its 1 or 3 channels."""
    shape = port.shape or ()
    batch = "N" * (len(shape) - 3)
    candidates = [
        batch + layout
        for layout, channel_axis in (("CHW", -3), ("HWC", -1))
        if len(shape) in (3, 4) and shape[channel_axis] in (1, 3)
    ]
    if len(candidates) != 1:
        raise click.UsageError(
            f"input {port.name!r} is {port}; its layout cannot be inferred. Set it, for example "
            f"--layout {port.name}={'NCHW'[len(shape) == 3 :]}."
        )
    return candidates[0]
