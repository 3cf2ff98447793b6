"""Asking a vendor's runtime about nodes where its crash is an answer: in a process of its own."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final, Generic, TypeVar

import msgpack
import onnx
import xxhash

from hetero.devices.model.attributes import body_values, with_bodies
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.unique_names import UniqueNames
from hetero.devices.model.worker_process import Ended, WorkerProcess
from hetero.devices.plugin.support import Refusal

#: Memory for a request besides what it speaks of, in bytes.
_MEMORY_NBYTES: Final = 2**32
#: Processor time for a request, in seconds, and more for each of its questions.
_TIME_S: Final = 20
_TIME_S_PER_QUESTION: Final = 0.5
#: Crashes after which the rest of a model's nodes is refused unasked: each costs a start.
_CRASHES: Final = 8

#: Answers kept.
_KEPT: Final = 20_000
#: Element types that numpy has, whose arrays vendors' runtimes take.
NUMPY_TYPES: Final = frozenset(
    {"float", "float16", "double", "bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)

#: A refusal, a note on a node that is taken, or None.
Verdict = Refusal | str | None
#: The device or provider that is asked.
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """A node to ask about; a runtime's own adds fields that msgpack knows."""

    #: Its operator.
    op_type: str
    #: A model of it alone; equal nodes have equal ones.
    data: bytes
    #: The size of constants that it speaks of and does not hold.
    nbytes: int


class QueryProcess:
    """A runtime that is asked in a process of its own; `vendor` is its name, for people.

    `verdicts` is called there about nodes: it takes the fields of questions and a target, and
    returns a verdict on each. Like every function that is called there it is a module's, and takes
    values that msgpack knows, dataclasses as lists of their fields.
    """

    def __init__(self, vendor: str, verdicts: Callable[..., list[Verdict]]) -> None:
        self._vendor = vendor
        self._verdicts = verdicts
        self._worker = WorkerProcess(f"{__name__}:_answer", sys.path)

    def ask(
        self, function: Callable[..., Any], *arguments: Any, count: int = 1, nbytes: int = 0
    ) -> Any:
        """Return what a function returns there, or how the process ended.

        `count`: how many questions there are; `nbytes`: the memory that they speak of.
        """
        answer = self._worker.ask(
            msgpack.packb([function.__module__, function.__name__, arguments], default=astuple),
            memory_nbytes=_MEMORY_NBYTES + 2 * nbytes,
            time_s=_TIME_S + count * _TIME_S_PER_QUESTION,
        )
        return answer if isinstance(answer, Ended) else msgpack.unpackb(answer)

    def verdicts(self, questions: Sequence[NodeQuery], target: Any) -> list[Verdict]:
        """Return what the runtime says of each node; one that ends its process is refused."""
        if not questions:
            return []
        answer = self._of(questions, target)
        if not isinstance(answer, Ended):
            return answer
        found: list[Verdict] = []
        crashes = 0
        for question in questions:
            if crashes < _CRASHES and len(questions) > 1:
                answer = self._of([question], target)
            if isinstance(answer, Ended):
                crashes += 1
                asked = f"{self._vendor} crashed when it was asked about {question.op_type}"
                found.append(Refusal("no_kernel", f"{asked}: {answer.how}"))
            else:
                found += answer
        return found

    def _of(self, questions: Sequence[NodeQuery], target: Any) -> list[Verdict] | Ended:
        nbytes = sum(question.nbytes for question in questions)
        answer = self.ask(self._verdicts, questions, target, count=len(questions), nbytes=nbytes)
        if isinstance(answer, Ended):
            return answer
        return [Refusal(*verdict) if isinstance(verdict, list) else verdict for verdict in answer]


class VerdictCache(Generic[T]):
    """What a runtime said of nodes, each distinct kind of node asked about once.

    `is_shown`: whether a constant's contents matter to the answer for a node that reads it.
    `question`, `answers`: make the question about a node, and return what is said of several.
    """

    def __init__(
        self,
        is_shown: Callable[[Constant, Node], bool],
        question: Callable[[Node, Model, T], NodeQuery],
        answers: Callable[[Sequence[Any], T], list[Verdict]],
    ) -> None:
        self._is_shown = is_shown
        self._question = question
        self._answers = answers
        self._known: dict[tuple[bytes, T], Verdict] = {}
        self._lock = threading.Lock()

    def of(self, nodes: Iterable[Node], model: Model, target: T) -> dict[str, Refusal | str]:
        """Return refusals, and notes on nodes that are not run as they stand, by node name."""
        places: dict[str, tuple[bytes, T]] = {}
        same: dict[tuple[bytes, T], tuple[bytes, T]] = {}
        new: dict[tuple[bytes, T], NodeQuery] = {}
        header = model.header.SerializeToString(deterministic=True)
        with self._lock:
            if len(self._known) >= _KEPT:
                self._known.clear()
            for node in nodes:
                # A node comes again with the part of the model that it is put in.
                digest = self._digest_in_place(node, model, header)
                place = places[node.name] = (digest, target)
                if place not in self._known and place not in same:
                    question = self._question(node, model, target)
                    key = same[place] = (xxhash.xxh3_128_digest(question.data), target)
                    if key not in self._known:
                        new[key] = question
            answers = self._answers(list(new.values()), target)
            self._known |= dict(zip(new, answers, strict=True))
            self._known |= {place: self._known[key] for place, key in same.items()}
            heard = {name: self._known[place] for name, place in places.items()}
        return {name: verdict for name, verdict in heard.items() if verdict is not None}

    def _digest_in_place(self, node: Node, model: Model, header: bytes) -> bytes:
        """Return a hash of all that a verdict follows from, names included: quicker than to ask."""
        state = xxhash.xxh3_128(header)
        state.update(node.proto.SerializeToString(deterministic=True))
        for value in (*node.reads, *node.writes):
            spec, constant = model.spec(value), model.constants.get(value)
            state.update(f"{spec.type}{spec.shape}{constant is None}".encode())
            if constant is not None and self._is_shown(constant, node):
                state.update(constant.digest)
        return state.digest()


def single_node_model(
    node: Node,
    model: Model,
    is_shown: Callable[[Constant], bool],
    port: Callable[[TensorSpec], TensorSpec],
) -> onnx.ModelProto:
    """Return a model of one node, its values renamed so that equal nodes give equal bytes.

    `is_shown`: whether a constant that the node reads is in the new model; the others are inputs of
    it. `port`: what is shown of an input's type and shape.
    """
    proto = onnx.ModelProto(ir_version=model.header.ir_version)
    proto.opset_import.extend(model.header.opset_import)
    functions = {(f.domain, f.name) for f in model.header.functions}
    if functions and any((n.domain, n.op_type) in functions for n in with_bodies(node.proto)):
        proto.functions.extend(model.header.functions)
    graph = proto.graph
    graph.name = "node"
    only = graph.node.add()
    only.CopyFrom(node.proto)
    only.name = "node"
    only.doc_string = ""
    del only.metadata_props[:]
    # Bodies read captured values by name, so a node with captures keeps its names.
    names = {value: value for value in (*node.reads, *node.writes)}
    if not node.captures:
        unique_names = UniqueNames(body_values(node.proto))
        names = {value: unique_names.make(f"v{i}") for i, value in enumerate(names)}
        del only.input[:], only.output[:]
        only.input.extend(names.get(value, "") for value in node.inputs)
        only.output.extend(names.get(value, "") for value in node.outputs)
    for value in node.reads:
        constant = model.constants.get(value)
        if constant is not None and is_shown(constant):
            tensor = constant.to_proto()
            tensor.name = names[value]
            graph.initializer.append(tensor)
        else:
            shown = port(model.spec(value))
            graph.input.append(TensorSpec(names[value], shown.type, shown.shape).to_proto())
    graph.output.extend(
        TensorSpec(names[value], model.spec(value).type).to_proto()
        for value in node.writes
        if model.spec(value).type
    )
    return proto


def _answer(request: bytes) -> bytes:
    """Answer a request in the other process."""
    module, function, arguments = msgpack.unpackb(request)
    answer = getattr(importlib.import_module(module), function)(*arguments)
    packed: bytes = msgpack.packb(answer, default=astuple)
    return packed
