"""OpenVINO's Core: a `hetero.Core` whose models change in place."""

from __future__ import annotations

from typing import Any

from hetero import core
from hetero.faces.openvino.model import Model


class Core(core.Core):
    """The devices of a machine or a cluster; see `hetero.Core`.

    `read_model` returns a model that changes in place, as in OpenVINO.
    """

    def read_model(self, *arguments: Any, **options: Any) -> Model:  # type: ignore[override]  # the models of this face
        """Read a model that changes in place; the arguments are those of `hetero.Core`."""
        return Model(super().read_model(*arguments, **options))
