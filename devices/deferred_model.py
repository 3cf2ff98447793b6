"""A model that is read when more than its ports is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from devices.model import Model
from devices.tensor_spec import TensorSpec


class DeferredModel(Model):
    """A model whose ports are known, and whose rest is read when it is first asked for.

    Parameters
    ----------
    name : str
        The graph's name.
    inputs, outputs : sequence of TensorSpec
        The ports.
    load : callable
        Returns the whole model; called once at most.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        load: Callable[[], Model],
    ) -> None:
        # The rest of what `Model` sets is set by `load`.
        self.__dict__.update(name=name, inputs=tuple(inputs), outputs=tuple(outputs), _load=load)

    def __getattr__(self, attribute: str) -> Any:
        load = self.__dict__.pop("_load", None)
        if load is None:
            raise AttributeError(f"a Model has no {attribute!r}")
        try:
            whole = load()
        except BaseException:
            self.__dict__["_load"] = load
            raise
        self.__dict__.update(whole.__dict__)
        return getattr(self, attribute)

    def __repr__(self) -> str:
        return f"<Model {self.name!r}>" if "_load" in self.__dict__ else super().__repr__()
