"""Queries of vendor runtimes about single nodes, in a worker process that may crash."""

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
from hetero.devices.model.worker_process import WorkerFailure, WorkerProcess
from hetero.devices.plugin.support import Refusal

#: Memory limit of a call, in addition to the constants of its nodes.
_MEMORY_NBYTES: Final = 2**32
#: Limit of processor time: a constant, and seconds for each node.
_TIME_S: Final = 20
_TIME_S_PER_NODE: Final = 0.5
#: After this many crashes the other nodes of a model are refused without a query, because each
#: crash costs a start of the process.
_MAX_CRASHES: Final = 8

#: Maximum number of cached verdicts.
_MAX_VERDICTS: Final = 20_000
#: Element types of numpy, whose arrays vendor runtimes accept.
NUMPY_TYPES: Final = frozenset(
    {"float", "float16", "double", "bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)

#: A refusal, a note on a supported node, or None for a supported node.
Verdict = Refusal | str | None
#: The device or provider of a query.
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """A query about one node; subclasses add fields that msgpack can pack."""

    #: The node's operator.
    op_type: str
    #: A model with only this node; equal nodes have equal models.
    data: bytes
    #: Bytes of the node's constants that `data` does not contain.
    nbytes: int


class QueryProcess:
    """A worker process that queries one vendor's runtime; `vendor` is its name in messages.

    The worker calls `verdicts` with the fields of several queries and a target; it returns a
    verdict on each node. Functions that run in the worker are module-level functions. Their
    arguments are values that msgpack can pack; a dataclass arrives as a list of its fields.
    """

    def __init__(self, vendor: str, verdicts: Callable[..., list[Verdict]]) -> None:
        self._vendor = vendor
        self._verdicts = verdicts
        self._worker = WorkerProcess(f"{__name__}:_respond", sys.path)

    def call(
        self, function: Callable[..., Any], *arguments: Any, count: int = 1, nbytes: int = 0
    ) -> Any:
        """Call a function in the worker; return its result, or a WorkerFailure.

        `count` is the number of nodes in the arguments, and `nbytes` the size of their constants.
        """
        response = self._worker.call(
            # msgspec, which writes blobs, plans and messages, would write dataclasses as maps.
            msgpack.packb([function.__module__, function.__name__, arguments], default=astuple),
            memory_nbytes=_MEMORY_NBYTES + 2 * nbytes,
            time_s=_TIME_S + count * _TIME_S_PER_NODE,
        )
        return response if isinstance(response, WorkerFailure) else msgpack.unpackb(response)

    def verdicts(self, queries: Sequence[NodeQuery], target: Any) -> list[Verdict]:
        """Return the runtime's verdict on each node; a node that crashes it is refused."""
        if not queries:
            return []
        result = self._run(queries, target)
        if not isinstance(result, WorkerFailure):
            return result
        verdicts: list[Verdict] = []
        crashes = 0
        for query in queries:
            if crashes < _MAX_CRASHES and len(queries) > 1:
                result = self._run([query], target)
            if isinstance(result, WorkerFailure):
                crashes += 1
                message = f"{self._vendor} crashed in a query of {query.op_type}: {result.reason}"
                verdicts.append(Refusal("no_kernel", message))
            else:
                verdicts += result
        return verdicts

    def _run(self, queries: Sequence[NodeQuery], target: Any) -> list[Verdict] | WorkerFailure:
        nbytes = sum(query.nbytes for query in queries)
        result = self.call(self._verdicts, queries, target, count=len(queries), nbytes=nbytes)
        if isinstance(result, WorkerFailure):
            return result
        return [Refusal(*verdict) if isinstance(verdict, list) else verdict for verdict in result]


class CachedQuery(Generic[T]):
    """Query of a model's nodes with a cache, so that equal nodes are queried once.

    Parameters
    ----------
    is_visible : callable
        Returns whether the verdict on a node may depend on the contents of a constant.
    make_query : callable
        Returns the query about a node.
    run_queries : callable
        Returns the verdicts on several queries.
    """

    def __init__(
        self,
        is_visible: Callable[[Constant, Node], bool],
        make_query: Callable[[Node, Model, T], NodeQuery],
        run_queries: Callable[[Sequence[Any], T], list[Verdict]],
    ) -> None:
        self._is_visible = is_visible
        self._make_query = make_query
        self._run_queries = run_queries
        self._verdicts: dict[tuple[bytes, T], Verdict] = {}
        self._lock = threading.Lock()

    def verdicts(self, nodes: Iterable[Node], model: Model, target: T) -> dict[str, Refusal | str]:
        """Return the refusals of nodes, and the notes on supported nodes, by node name."""
        node_keys: dict[str, tuple[bytes, T]] = {}
        query_keys: dict[tuple[bytes, T], tuple[bytes, T]] = {}
        new: dict[tuple[bytes, T], NodeQuery] = {}
        header = model.header.SerializeToString(deterministic=True)
        with self._lock:
            if len(self._verdicts) >= _MAX_VERDICTS:
                self._verdicts.clear()
            for node in nodes:
                # The same node is queried again as part of a submodel. The hash of its context is
                # faster to compute than its query.
                node_key = node_keys[node.name] = (self._digest(node, model, header), target)
                if node_key not in self._verdicts and node_key not in query_keys:
                    query = self._make_query(node, model, target)
                    key = query_keys[node_key] = (xxhash.xxh3_128_digest(query.data), target)
                    if key not in self._verdicts:
                        new[key] = query
            results = self._run_queries(list(new.values()), target)
            self._verdicts |= dict(zip(new, results, strict=True))
            self._verdicts |= {n: self._verdicts[key] for n, key in query_keys.items()}
            verdicts = {name: self._verdicts[key] for name, key in node_keys.items()}
        return {name: verdict for name, verdict in verdicts.items() if verdict is not None}

    def _digest(self, node: Node, model: Model, header: bytes) -> bytes:
        """Return a hash of the node, its value types and the contents of its visible constants."""
        state = xxhash.xxh3_128(header)
        state.update(node.proto.SerializeToString(deterministic=True))
        for value in (*node.reads, *node.writes):
            spec, constant = model.spec(value), model.constants.get(value)
            state.update(f"{spec.type}{spec.shape}{constant is None}".encode())
            if constant is not None and self._is_visible(constant, node):
                state.update(constant.digest)
        return state.digest()


def single_node_model(
    node: Node,
    model: Model,
    is_visible: Callable[[Constant], bool],
    port: Callable[[TensorSpec], TensorSpec],
) -> onnx.ModelProto:
    """Return a model of one node, with canonical value names so that equal nodes give equal bytes.

    Visible constants become initializers of the new model, the others inputs. `port` returns the
    type and shape to declare for an input.
    """
    proto = onnx.ModelProto(ir_version=model.header.ir_version)
    proto.opset_import.extend(model.header.opset_import)
    functions = {(f.domain, f.name) for f in model.header.functions}
    if functions and any((n.domain, n.op_type) in functions for n in with_bodies(node.proto)):
        proto.functions.extend(model.header.functions)
    graph = proto.graph
    graph.name = "node"
    copy = graph.node.add()
    copy.CopyFrom(node.proto)
    copy.name = "node"
    copy.doc_string = ""
    del copy.metadata_props[:]
    # Bodies refer to captured values by name, so a node with captures keeps its value names.
    names = {value: value for value in (*node.reads, *node.writes)}
    if not node.captures:
        unique_names = UniqueNames(body_values(node.proto))
        names = {value: unique_names.make(f"v{i}") for i, value in enumerate(names)}
        del copy.input[:], copy.output[:]
        copy.input.extend(names.get(value, "") for value in node.inputs)
        copy.output.extend(names.get(value, "") for value in node.outputs)
    for value in node.reads:
        constant = model.constants.get(value)
        if constant is not None and is_visible(constant):
            tensor = constant.to_proto()
            tensor.name = names[value]
            graph.initializer.append(tensor)
        else:
            spec = port(model.spec(value))
            graph.input.append(TensorSpec(names[value], spec.type, spec.shape).to_proto())
    graph.output.extend(
        TensorSpec(names[value], model.spec(value).type).to_proto()
        for value in node.writes
        if model.spec(value).type
    )
    return proto


def _respond(request: bytes) -> bytes:
    """Call the function of a request; runs in the worker process."""
    module, function, arguments = msgpack.unpackb(request)
    result = getattr(importlib.import_module(module), function)(*arguments)
    response: bytes = msgpack.packb(result, default=astuple)
    return response
