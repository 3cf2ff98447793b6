"""A model that loads its graph on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec


class LazyModel(Model):
    """A model with its ports in memory; `load` reads the complete model on first use.

    `load` is called at most once. If `metadata` is None, reading the metadata also loads the model.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        load: Callable[[], Model],
        optional_inputs: Sequence[TensorSpec] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        # `load` sets the other attributes of `Model`.
        self.__dict__.update(
            name=name,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            optional_inputs=tuple(optional_inputs),
            _load=load,
            _lock=threading.RLock(),
        )
        if metadata is not None:
            self.__dict__["metadata"] = metadata

    def __getattr__(self, attribute: str) -> Any:
        state = self.__dict__
        with state["_lock"]:
            if "_load" in state:
                state.update(state["_load"]().__dict__ | state)
                del state["_load"]
        if attribute not in state:
            raise AttributeError(f"a Model has no {attribute!r}")
        return state[attribute]

    def __repr__(self) -> str:
        return f"<Model {self.name!r}>" if "_load" in self.__dict__ else super().__repr__()
