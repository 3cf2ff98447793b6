"""Simulated histories of generation: `hetero.apps.generate` on a simulated client, with faults.

Each layer folds its inputs into a state of one number, so that a lost, old or repeated state gives
other tokens. Tokens also depend on the random numbers of sampling.
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
from hetero.apps.generate.sequences import StepGroup
from hetero.devices.errors import HeteroError, RequestCancelledError, TensorLostError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.request import Request
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import share, single_placement
from hetero.scheduler.types.plan import Plan, Stage
from tests.simulation.history import History
from tests.simulation.scenario import Call, Faults, Model, SimulatedWork
from tests.simulation.supervised_client import SupervisedClient

LAYERS = 3
DECODER = Decoder("ids", "", 997, token="token", sampling="sampling", seen="seen")
_PRIME = np.int64(1_000_003)
#: Consecutive losses of devices after which a sequence may fail.
_MAX_LOSSES = 5


def layer(number: int, x: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return a layer's output for each position; the last one is its next state."""
    states = []
    for column in x.T:
        state = (state[:, :1] * _PRIME + column[:, None]) * _PRIME + number
        states.append(state)
    return np.concatenate(states, axis=1)


def sample(x: np.ndarray, sampling: np.ndarray) -> np.ndarray:
    """Return the next token of each row."""
    random_numbers = (sampling[:, -1:] * 1000).astype(np.int64)
    return np.asarray((x[:, -1:] // 7 + random_numbers) % DECODER.vocabulary)


def expected_tokens(prompt: Sequence[int], count: int, seed: int) -> list[int]:
    """Return the tokens that follow a prompt, computed on the whole sequence at once."""
    ids, random = list(prompt), np.random.Generator(np.random.Philox(seed))
    for _ in range(count):
        x, random_number = np.asarray([ids]), random.random(dtype=np.float32)
        for number in range(LAYERS):
            x = layer(number, x, np.zeros((1, 1), np.int64))
        ids.append(int(sample(x, np.full((1, 1), random_number))[0, 0]))
    return ids[len(prompt) :]


class DecoderModel(Model):
    """A deployed decoder with its batcher; also the target of its requests."""

    def __init__(self, history: History, client: SupervisedClient) -> None:
        random = history.random
        self.client, self.simulator = client, history.simulator
        self.has_state, self.shape, self.width, self.batching = True, "text", 1, None
        self.limits = Limits(
            requests=random.choice((1, 2, 8)),
            timeout_s=600.0,
            admission_timeout_s=600.0,
            attempts=random.choice((5, 5, 2)),
            stage_timeout_s=1.5 if history.faults.hang else 0.0,
        )
        plans = [_plan([random.choice(history.names) for _ in range(LAYERS)]) for _ in range(2)]
        self.placement = (
            share(plans, [1.0, 1.0]) if random.random() < 0.5 else single_placement(plans[0])
        )
        self.mean_s = random.choice((0.0, 0.005, 0.05))
        self.is_bursty, self.last_state = False, None
        self.deployment = client.deploy(self.placement, self.limits)
        self.runner = self.deployment._runner
        self.is_closed = False
        self.records: dict[int, Any] = {}
        self.delivered: list[int] = []
        axes = {f"s{i}": (0, None) for i in range(LAYERS)}
        layout = BatchLayout(axes, "end", joins_calls=True)
        self.batcher = Batcher(DECODER, layout, random.choice((1, 2, 100)))
        executor = SimpleNamespace(
            submit=lambda work, *arguments: self.simulator.spawn(partial(work, *arguments))
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
            copy_input=np.ndarray.copy,
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


class DecoderWork(SimulatedWork):
    """Workload of the decoder's layers."""

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        positions = layer(int(stage.outputs[-1][1:]), inputs[0], inputs[1])
        result = sample(positions, inputs[2]) if "token" in stage.outputs else positions
        for array in (positions, result):
            array.flags.writeable = False
        return result, positions[:, -1:]


class GenerationHistory(History):
    """A history whose calls generate tokens; each has its tokens or an explained error."""

    recovery_s, settle_s = 300.0, 30.0  # a sequence takes many requests
    joint_crashes = 0.3  # caches are recomputed from tensors on devices that remain
    model_class = DecoderModel
    work_class = DecoderWork

    def _watch(self, model: Any) -> None:
        super()._watch(model)
        handle = model.batcher._error_to_raise
        model.batcher._error_to_raise = partial(self._check_lost_caches, handle)

    def _check_lost_caches(self, handle: Any, group: StepGroup, error: BaseException) -> Any:
        """Handle the failure of a step; sequences whose caches were lost give them up."""
        num_losses = {sequence: sequence.num_losses for sequence in group.sequences}
        result = handle(group, error)
        for sequence, before in num_losses.items():
            if sequence.num_losses > before and sequence.slot is not None:
                self.report_violation(f"a sequence keeps its lost caches: {error}")
        return result

    def _start_call(
        self, model: Any, remaining: int, state: Any = None, *, is_last: bool = False
    ) -> None:
        random, faults = self.simulator.random, Faults() if is_last else self.faults
        if not is_last and (self.are_faults_over or model.is_closed):
            return
        number = len(self.calls) + 1
        length, count = random.choice((1, 3, 6, 40)), random.randint(1, 12)
        rows = random.choice((1, 1, 1, 3))
        prompts = [
            [random.randrange(DECODER.vocabulary) for _ in range(length)] for _ in range(rows)
        ]
        generation = start_generation(
            model.batcher,
            lambda: InferRequest(model.target),
            prompts if rows > 1 else prompts[0],
            count,
            Sampling(temperature=1.0),  # greedy decoding draws no random numbers
            number,
            (),
            None,
            {},
        )
        expected = np.asarray(
            [expected_tokens(p, count, number + i) for i, p in enumerate(prompts)]
        )
        names: Mapping[str, Any] = dict.fromkeys(model.placement.plan.output_names)
        inputs = {"text": generation, "cancel": generation.cancel}
        call = Call(
            number, model, inputs, {**names, "token": expected}, Request(), self.simulator.now
        )
        call.remaining = 0  # states belong to the sequence
        self.calls.append(call)
        self._open[number] = call
        self.simulator.spawn(
            partial(self._advance, call, self._read_tokens(call, generation, expected))
        )
        if random.random() < faults.cancel:
            self.simulator.after(random.choice((0.0, 0.003, 0.03, 0.3)), self._cancel, call)
        if remaining > 1:
            self.simulator.after(
                model.next_call_delay_s(random), self._start_call, model, remaining - 1
            )

    async def _read_tokens(
        self, call: Call, generation: Generation | BatchGeneration, expected: np.ndarray
    ) -> None:
        """Read all tokens of a generation; after an error, sometimes request the token again."""
        tokens = np.empty((len(expected), 0), np.int64)
        while True:
            try:
                async for token in generation:
                    tokens = np.column_stack([tokens, np.ravel(token)])
                    if not np.array_equal(tokens, expected[:, : tokens.shape[1]]):
                        self.report_violation(
                            f"text {call.number} goes on {tokens[:, -1]} at {tokens.shape[1]}"
                        )
                        return
            except HeteroError as error:
                error.with_traceback(None)  # the traceback refers to the caches of the generation
                if isinstance(error, TensorLostError) and self.num_losses <= _MAX_LOSSES:
                    self.report_violation(f"text {call.number} ends after few losses: {error}")
                is_over = isinstance(error, RequestCancelledError) or call.model.is_closed
                if not is_over and self.simulator.random.random() < 0.5:
                    continue
                generation.cancel()
                self._ended(call, error)
                return
            if call.is_cancelled:
                call.expected["token"] = expected[:, : tokens.shape[1]]
            self._ended(call, dict.fromkeys(call.expected) | {"token": tokens})
            return

    def _advance(self, call: Call, steps: Any) -> None:
        """Advance a generation until it waits for a run."""
        try:
            future = steps.send(None)
        except StopIteration:
            return
        resume = partial(self._advance, call, steps)
        future.add_done_callback(lambda _: self.simulator.spawn(resume))
