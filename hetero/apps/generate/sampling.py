"""Sampling: an ONNX function that chooses the next token on the device of the logits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import onnx
from onnx.parser import parse_function

from hetero.devices.errors import ArgumentError, ArgumentTypeError

DOMAIN: Final = "hetero.generate"
#: Oldest operator set that `_BODY` supports.
OPSET: Final = 13
#: Below this temperature, scores may overflow; sampling is greedy at much higher ones already.
_MIN_TEMPERATURE: Final = 1e-30
#: Maximum of the sampling input, which is float32.
_MAX_FLOAT: Final = float(np.finfo(np.float32).max)

#: Inputs: logits [batch, length, vocabulary]; sampling [batch, 6] of float32 (the fields of
#: `Sampling`, then a random number in [0, 1)); seen [batch, n] of int64, the ids to penalise.
#: Output: token [batch, 1] of int64.
#: If no row draws or penalises, a token is the highest score: the other nodes would take a tenth of
#: a small model's step, because their code is never in the processor's caches.
#: The order of the filters is that of transformers: penalty, temperature, top-k, top-p, min-p.
#: Sorting the whole vocabulary would be the largest cost. Without top-k, the draw therefore uses
#: the unsorted vocabulary, and top-p sorts the best 1,024 tokens unless their mass is too small.
_BODY: Final = """
<domain: "hetero.generate", opset_import: ["": 13]>
Sample (logits, sampling, seen) => (token)
{
    newest = Constant <value = int64 {-1}> ()
    last = Gather <axis = 1> (logits, newest)
    scores = Cast <to = 1> (last)
    switches = Constant <value = int64[2] {1, 4}> ()
    off = Constant <value = float {1.0}> ()
    top_k_and_penalty = Gather <axis = 1> (sampling, switches)
    differences = Sub (top_k_and_penalty, off)
    difference = ReduceL1 <keepdims = 0> (differences)
    is_drawn = Cast <to = 9> (difference)
    token = If (is_drawn) <
        else_branch = greedy () => (int64[b, 1] greedy_token)
        {
            greedy_token = ArgMax <axis = 1> (scores)
        },
        then_branch = draw () => (int64[b, 1] drawn_token)
        {
            axis = Constant <value = int64 {1}> ()
            zero_at = Constant <value = int64[1] {0}> ()
            one_at = Constant <value = int64[1] {1}> ()
            two_at = Constant <value = int64[1] {2}> ()
            zero = Constant <value = int64 {0}> ()
            none = Constant <value = float {0.0}> ()
            all_of_it = Constant <value = float {1.0}> ()
            singly = Constant <value = int64[6] {1, 1, 1, 1, 1, 1}> ()
            temperature, top_k, top_p, min_p, penalty, drawn = Split <axis = 1> (sampling, singly)

            old = GatherElements <axis = 1> (scores, seen)
            is_negative = Less (old, none)
            lowered = Mul (old, penalty)
            raised = Div (old, penalty)
            changed = Where (is_negative, lowered, raised)
            penalized = ScatterElements <axis = 1> (scores, seen, changed)
            scaled = Div (penalized, temperature)

            shape = Shape (scaled)
            vocabulary = Slice (shape, one_at, two_at)
            width = Cast <to = 1> (vocabulary)
            takes_all = GreaterOrEqual (top_k, width)
            limit = Where (takes_all, all_of_it, top_k)
            most_k = ReduceMax <keepdims = 0> (limit)
            most = Cast <to = 7> (most_k)
            fewest = Reshape (most, one_at)
            takers = Cast <to = 1> (takes_all)
            any_taker = ReduceMax <keepdims = 0> (takers)
            is_any = Cast <to = 9> (any_taker)
            is_nucleus = Less (top_p, all_of_it)
            count, mass, by_place = If (is_any) <
                then_branch = of_all () => (
                    int64[1] all_count, float[b, 1] all_mass, int64[b, 1] all_place
                )
                {
                    each = Softmax <axis = 1> (scaled)
                    some = Constant <value = int64[1] {1024}> ()
                    wanted = Max (some, fewest)
                    tried = Min (wanted, vocabulary)
                    first, first_ids = TopK <axis = 1> (each, tried)
                    highest = Slice (first, zero_at, one_at, one_at)
                    likeliest = Slice (first_ids, zero_at, one_at, one_at)

                    lowest = Mul (highest, min_p)
                    is_high = GreaterOrEqual (each, lowest)
                    not_any = Sub (each, each)
                    high = Where (is_high, each, not_any)
                    high_up_to = CumSum (high, axis)
                    high_total = ReduceSum (high, one_at)
                    high_goal = Mul (high_total, drawn)
                    is_below = LessOrEqual (high_up_to, high_goal)
                    below = Cast <to = 7> (is_below)
                    num_below = ReduceSum (below, one_at)
                    is_place = Less (num_below, vocabulary)
                    all_place = Where (is_place, num_below, likeliest)

                    first_mass = ReduceSum (first, one_at)
                    is_lacking = Less (first_mass, top_p)
                    is_wanting = And (is_lacking, is_nucleus)
                    is_short = And (is_wanting, takes_all)
                    short = Cast <to = 1> (is_short)
                    any_short = ReduceMax <keepdims = 0> (short)
                    are_short = Cast <to = 9> (any_short)
                    all_count = Where (are_short, vocabulary, tried)
                    sorted_mass = Where (are_short, all_of_it, first_mass)
                    all_mass = Where (takes_all, sorted_mass, all_of_it)
                },
                else_branch = of_few () => (
                    int64[1] few_count, float[b, 1] few_mass, int64[b, 1] few_place
                )
                {
                    few_count = Min (fewest, vocabulary)
                    nought = Sub (drawn, drawn)
                    few_mass = Add (nought, all_of_it)
                    few_place = Cast <to = 7> (nought)
                }
            >
            values, ids = TopK <axis = 1> (scaled, count)
            size = Squeeze (count, zero_at)
            ranks = Range (zero, size, axis)
            rank = Cast <to = 1> (ranks)
            is_among = Less (rank, top_k)
            likely = Softmax <axis = 1> (values)
            nothing = Sub (likely, likely)
            among = Where (is_among, likely, nothing)
            sum = ReduceSum (among, one_at)
            share = Div (among, sum)
            probability = Mul (share, mass)

            before = CumSum <exclusive = 1> (probability, axis)
            in_nucleus = Less (before, top_p)
            best = Slice (probability, zero_at, one_at, one_at)
            floor = Mul (best, min_p)
            is_likely = GreaterOrEqual (probability, floor)
            is_kept = And (in_nucleus, is_likely)
            kept = Where (is_kept, probability, nothing)
            up_to = CumSum (kept, axis)
            total = ReduceSum (kept, one_at)
            goal = Mul (total, drawn)
            is_passed = LessOrEqual (up_to, goal)
            passed = Cast <to = 7> (is_passed)
            place = ReduceSum (passed, one_at)
            is_kept_int = Cast <to = 7> (is_kept)
            num_kept = ReduceSum (is_kept_int, one_at)
            last_place = Sub (num_kept, one_at)
            within = Min (place, last_place)
            by_rank = GatherElements <axis = 1> (ids, within)
            in_order = Not (is_nucleus)
            is_by_place = And (takes_all, in_order)
            drawn_token = Where (is_by_place, by_place, by_rank)
        }
    >
}
"""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling options, checked; see `hetero.apps.generate.generation.generate`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise ArgumentTypeError(f"{field.name}={value!r}: expected a number.")
        ranges = {
            "temperature": (0 <= self.temperature <= _MAX_FLOAT, "0 for greedy decoding, or more"),
            "top_k": (
                0 <= self.top_k < 2**24 and int(self.top_k) == self.top_k,
                "the number of best tokens to draw from, 0 for all",
            ),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "between 0 and 1"),
            "repetition_penalty": (
                0 < self.repetition_penalty <= _MAX_FLOAT,
                "above 0; 1 for no penalty",
            ),
        }
        for name, (is_valid, expected) in ranges.items():
            if not is_valid:
                raise ArgumentError(f"{name}={getattr(self, name)!r}: expected {expected}.")

    def row(self, vocabulary: int) -> np.ndarray:
        """Return one row of the sampling input, [1, 6] of float32, with 0 as the random number."""
        greedy = self.temperature < _MIN_TEMPERATURE
        values = [
            1.0 if greedy else self.temperature,
            1 if greedy else self.top_k or vocabulary,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            0.0,
        ]
        return np.asarray([values], np.float32)


def sample_function(opset: int) -> onnx.FunctionProto:
    """Return the operator ``Sample`` as an ONNX function of an operator set."""
    function: onnx.FunctionProto = parse_function(_BODY)
    function.opset_import[0].version = opset
    return function
