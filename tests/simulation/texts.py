"""Histories of texts: `hetero.generate`, as it is, over a world's client, under a seed's faults.

Each layer folds what it reads into a state of one number, so that a state which is lost, old or
taken over twice gives other tokens; and tokens hang on the numbers that are drawn for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.apps.generate.batch_layout import BatchLayout
from hetero.apps.generate.batcher import Batcher
from hetero.apps.generate.decoder_ports import Decoder
from hetero.apps.generate.generation import BatchGeneration, Generation, start_generation
from hetero.apps.generate.sampling import Sampling
from hetero.devices.errors import HeteroError, RequestCancelledError, TensorLostError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.request import Request
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import alone, share
from hetero.scheduler.types.plan import Plan, Stage
from tests.simulation.drawn import Call, Faults, Model, Played
from tests.simulation.history import History
from tests.simulation.kept_client import KeptClient

LAYERS = 3
DECODER = Decoder("ids", "", 997, token="token", sampling="sampling", seen="seen")
_PRIME = np.int64(1_000_003)
#: Losses of devices in a row after which a text may end with one.
_MANY_LOSSES = 5


def layer(number: int, x: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return what a layer makes of each position, of which the last is its next state."""
    made = []
    for column in x.T:
        state = (state[:, :1] * _PRIME + column[:, None]) * _PRIME + number
        made.append(state)
    return np.concatenate(made, axis=1)


def chosen(x: np.ndarray, sampling: np.ndarray) -> np.ndarray:
    """Return each row's token."""
    drawn = (sampling[:, -1:] * 1000).astype(np.int64)
    return np.asarray((x[:, -1:] // 7 + drawn) % DECODER.vocabulary)


def told(prompt: Sequence[int], count: int, seed: int) -> list[int]:
    """Return what a prompt is followed by: all layers see the whole text at once."""
    ids, draw = list(prompt), np.random.Generator(np.random.Philox(seed))
    for _ in range(count):
        x, drawn = np.asarray([ids]), draw.random(dtype=np.float32)
        for number in range(LAYERS):
            x = layer(number, x, np.zeros((1, 1), np.int64))
        ids.append(int(chosen(x, np.full((1, 1), drawn))[0, 0]))
    return ids[len(prompt) :]


class TextModel(Model):
    """A decoder that is deployed, and is what its requests run on."""

    def __init__(self, history: History, client: KeptClient) -> None:
        draw = history.random
        self.client, self.world = client, history.world
        self.has_state, self.shape, self.width, self.batching = True, "text", 1, None
        self.limits = Limits(
            requests=draw.choice((1, 2, 8)),
            timeout_s=600.0,
            admission_timeout_s=600.0,
            attempts=draw.choice((5, 5, 2)),
            stage_timeout_s=1.5 if history.faults.hang else 0.0,
        )
        plans = [_plan([draw.choice(history.names) for _ in range(LAYERS)]) for _ in range(2)]
        self.placement = share(plans, [1.0, 1.0]) if draw.random() < 0.5 else alone(plans[0])
        self.mean_s = draw.choice((0.0, 0.005, 0.05))
        self.deployment = client.deploy(self.placement, self.limits)
        self.runner = self.deployment._runner
        self.is_closed = False
        self.records: dict[int, Any] = {}
        self.delivered: list[int] = []
        axes = {f"s{i}": (0, None) for i in range(LAYERS)}
        layout = BatchLayout(axes, "end", joins_calls=True)
        self.batcher = Batcher(DECODER, layout, draw.choice((1, 2, 100)))
        executor = SimpleNamespace(
            submit=lambda work, *given: self.world.spawn(partial(work, *given))
        )
        states = [f"s{i}" for i in range(LAYERS)], [f"r{i}" for i in range(LAYERS)]
        ports = [[TensorSpec(n, "tensor(int64)", ("batch", 1)) for n in names] for names in states]
        plan = self.placement.plan
        self.target: Any = SimpleNamespace(
            name="text",
            inputs=[port for port in plan.inputs if port.name not in states[0]],
            optional_inputs=(),
            variables=tuple(map(Variable, *ports)),
            outputs=[port for port in plan.outputs if port.name == DECODER.token],
            profiles=False,
            callback_executor=executor,
            submit=self.deployment.submit,
        )


def _plan(devices: Sequence[str]) -> Plan:
    rest = [
        TensorSpec("sampling", "tensor(float)", ("batch", 6)),
        TensorSpec("seen", "tensor(int64)", ("batch", None)),
    ]
    ids, token = (
        TensorSpec("ids", "tensor(int64)", ("batch", None)),
        TensorSpec("token", "tensor(int64)", ("batch", 1)),
    )
    states = [
        [TensorSpec(f"{n}{i}", "tensor(int64)", ("batch", 1)) for i in range(LAYERS)] for n in "sr"
    ]
    stages = []
    for i, device in enumerate(devices):
        takes, gives = (f"h{i}" if i else "ids", f"s{i}"), (f"h{i + 1}", f"r{i}")
        if i == LAYERS - 1:
            takes, gives = (*takes, "sampling", "seen"), ("token", f"r{i}")
        stages.append(Stage(i, device, takes, gives, (f"n{i}",)))
    return Plan("text", (ids, *rest, *states[0]), (token, *states[1]), tuple(stages))


class TextWork(Played):
    """What the layers do."""

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        made = layer(int(stage.outputs[-1][1:]), inputs[0], inputs[1])
        last = chosen(made, inputs[2]) if "token" in stage.outputs else made
        for array in (made, last):
            array.flags.writeable = False
        return last, made[:, -1:]


class Texts(History):
    """A history whose callers ask for texts; each has its tokens, or a typed error with a cause."""

    healed_s, soon_s = 300.0, 30.0  # a text takes many requests
    model_of = TextModel
    work_of = TextWork

    def _arrive(self, model: Any, left: int, kept: Any = None, *, is_last: bool = False) -> None:
        draw, faults = self.world.random, Faults() if is_last else self.faults
        if not is_last and (self.is_healing or model.is_closed):
            return
        number = len(self.calls) + 1
        length, count = draw.choice((1, 3, 6, 40)), draw.randint(1, 12)
        rows = draw.choice((1, 1, 1, 3))
        prompts = [[draw.randrange(DECODER.vocabulary) for _ in range(length)] for _ in range(rows)]
        text = start_generation(
            model.batcher,
            lambda: InferRequest(model.target),
            prompts if rows > 1 else prompts[0],
            count,
            Sampling(),
            number,
            (),
            None,
            {},
        )
        want = np.asarray([told(p, count, number + i) for i, p in enumerate(prompts)])
        names: Mapping[str, Any] = dict.fromkeys(model.placement.plan.output_names)
        inputs = {"text": text, "cancel": text.cancel}
        call = Call(number, model, inputs, {**names, "token": want}, Request(), self.world.now)
        call.kept = 0  # a state is the text's own
        self.calls.append(call)
        self._open[number] = call
        self.world.spawn(partial(self._go_on, call, self._told(call, text, want)))
        if draw.random() < faults.cancel:
            self.world.after(draw.choice((0.0, 0.003, 0.03, 0.3)), self._cancel, call)
        if left > 1:
            self.world.after(model.later_s(draw), self._arrive, model, left - 1)

    async def _told(self, call: Call, text: Generation | BatchGeneration, want: np.ndarray) -> None:
        """Read a text to its end; whoever gets an error may ask for the token again."""
        got = np.empty((len(want), 0), np.int64)
        while True:
            try:
                async for token in text:
                    got = np.column_stack([got, np.ravel(token)])
                    if not np.array_equal(got, want[:, : got.shape[1]]):
                        self.breaks(f"text {call.number} goes on {got[:, -1]} at {got.shape[1]}")
                        return
            except HeteroError as error:
                error.with_traceback(None)  # it leads to the text, and would hold its caches
                if isinstance(error, TensorLostError) and self.num_losses <= _MANY_LOSSES:
                    self.breaks(f"text {call.number} ends after few losses: {error}")
                is_over = isinstance(error, RequestCancelledError) or call.model.is_closed
                if not is_over and self.world.random.random() < 0.5:
                    continue
                text.cancel()
                self._ended(call, error)
                return
            if call.is_cancelled:
                call.wanted["token"] = want[:, : got.shape[1]]
            self._ended(call, dict.fromkeys(call.wanted) | {"token": got})
            return

    def _go_on(self, call: Call, steps: Any) -> None:
        """Go on with a text, in a fiber, until it waits for a run."""
        try:
            waited = steps.send(None)
        except StopIteration:
            return
        go_on = partial(self._go_on, call, steps)
        waited.add_done_callback(lambda _: self.world.spawn(go_on))
