"""Fuzzing of models with seeded mutations: reading, compiling and running raise typed errors only.

``python -m tests.support.model_mutations --count 200000`` tries 200,000 mutations in child
processes. ``--seed 7 --first 1234 --count 1`` repeats one case.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

import hetero
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import HeteroError, RequestCancelledError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import RunContext

#: Limits of the processor time of a case, and of the memory of a child process.
CASE_S = 100
MEMORY_NBYTES = 12 << 30
#: Nodes after which a run is cancelled, because loops may be endless.
MOST_NODES = 3_000
#: Maximum number of elements of an input or of a result with an inferred shape.
MOST_ELEMENTS = 1 << 20

ROOT = Path(__file__).parents[2]

MODELS = {
    "convolutions": """g (float[N, 2, 6, 6] x) => (float[N, 3] y)
      <float[3, 2, 3, 3] w = {W}, float[3] b = {1, -1, 0.5}, float[3] s = {1, 2, 3},
       int64[2] shape = {0, -1}, float[27, 3] v = {V}> {
        c = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, b)
        n = BatchNormalization(c, s, b, b, s)
        r = Relu(n)
        p = MaxPool<kernel_shape = [2, 2], ceil_mode = 1>(r)
        a = AveragePool<kernel_shape = [1, 1]>(r)
        f = Flatten(r)
        g = Gemm<transB = 0, alpha = 0.5>(f, v, b)
        y = Softmax<axis = -1>(g)
    }""",
    "bodies": """g (float[4] x, bool c, int64 n) => (float[4] y, float[k, 4] z, float[4] m)
      <float[4] w = {1, 2, 3, 4}> {
        a = Add(x, w)
        t = If(c) <then_branch = then () => (float[4] o) <float[4] u = {4, 3, 2, 1}> {
                       o = Mul(a, u) },
                   else_branch = other () => (float[4] o) {
                       k = Constant<value = float[4] {1, 0, 1, 0}>() o = Sub(a, k) }>
        y, z = Loop(n, c, t) <body = body (int64 i, bool go, float[4] v)
                                  => (bool on, float[4] next, float[4] seen) {
            on = Identity(go) next = Add(v, a) seen = Neg(v) }>
        l, m = Scan<num_scan_inputs = 1, body = sum (float s, float e) => (float p, float q) {
            p = Add(s, e) q = Identity(p) }>(q0, y)
        q0 = Constant<value_float = 0.5>()
    }""",
    "functions": """g (float[2, 3] x) => (float[2, 3] y) {
        a = own.Scale<by = 2.0>(x)
        y = own.Twice(a)
      }
      <domain: "own", opset_import: ["": 17, "own": 1]>
      Scale <by> (v) => (o) { k = Constant<value_float: float = @by>() o = Mul(v, k) }
      <domain: "own", opset_import: ["": 17, "own": 1]>
      Twice (v) => (o) {
        w = Constant<value = float[1, 3] {1, 2, 3}>() t = own.Scale<by = 3.0>(v) o = Add(t, w) }
    """,
    "shapes": """g (float[N, 4, 3] x, int64[2] i) => (float[a, b] y, int64[3] s, float[c, d, e] p)
      <int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9223372036854775807},
       int64[6] pads = {0, 1, 0, 0, 1, 0}, int64[1] minus = {-1}> {
        s0 = Shape(x)
        b = Slice(s0, one, end)
        q = ReduceProd<keepdims = 1>(b)
        r = Concat<axis = 0>(minus, q)
        f = Reshape(x, r)
        t, ti = TopK(f, two)
        g = Gather<axis = 1>(f, i)
        e = Expand(g, two)
        z = ConstantOfShape<value = float[1] {2}>(two)
        ee = Add(e, z)
        tr = Transpose<perm = [1, 0]>(ee)
        y = MatMul(ee, tr)
        u = Unsqueeze(s0, one)
        s = Squeeze(u, one)
        p = Pad(x, pads)
    }""",
    "kinds": """g (string[2] x, float[3] f) => (string[2] y, uint8[3] q, float[3] d, float[2] l)
      <string[2] names = {"a", "b"}, float scale = {0.5}, uint8 zero = {3}, int4[3] w = {1, 2, 3}> {
        eq = Equal(x, names)
        y = Where(eq, x, names)
        q = QuantizeLinear(f, scale, zero)
        d1 = DequantizeLinear(q, scale, zero)
        d2 = DequantizeLinear(w, scale)
        d = Add(d1, d2)
        seq = SequenceConstruct(f, d)
        at = Constant<value_int = 1>()
        m = SequenceAt(seq, at)
        parts = SplitToSequence<axis = 0, keepdims = 1>(m)
        all = ConcatFromSequence<axis = 0>(parts)
        o = Optional(all)
        has = OptionalHasElement(o)
        v = Cast<to = 1>(has)
        ones = Constant<value_floats = [1.0, 1.0]>()
        l = Mul(v, ones)
    }""",
    "sequences": """g (float[5, 1, 3] x) => (float[5, 1, 1, 2] y, float[1, 1, 2] h, int64[a, b] e)
      <float[1, 8, 3] w = {L}, float[1, 8, 2] r = {R}> {
        y, h = LSTM<hidden_size = 2>(x, w, r)
        s = Squeeze(x)
        t = Transpose<perm = [1, 0]>(s)
        e0 = Einsum<equation = "ij,jk->ik">(s, t)
        e1 = LayerNormalization<axis = -1>(e0, k)
        k = Constant<value = float[5] {1, 1, 1, 1, 1}>()
        c = CumSum(e1, z)
        z = Constant<value_int = 0>()
        rs = Resize<mode = "linear">(c, "", sc)
        sc = Constant<value_floats = [2.0, 0.5]>()
        e = ArgMax<axis = 0>(rs)
    }""",
}
ODD_INTS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    16,
    100,
    255,
    -2,
    2**15,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32,
    2**62,
    2**63 - 1,
    -(2**63),
    1 << 40,
)
ODD_TEXT = (
    b"",
    b"x",
    b"y",
    b"w",
    b"\xff\xfe",
    b"..",
    b"SAME_UPPER",
    b"reverse",
    b"ai.onnx",
    b"own",
    b"Identity",
    b"Constant",
    b"Loop",
    b"a\0b",
    b"0",
    b"-8",
    b"64",
    b"99999999999999999999",
    b"location",
    b"offset",
    b"length",
    b"linear",
    b"value_float",
)


def models() -> list[onnx.ModelProto]:
    """Return the models to mutate: graphs of a few nodes with all kinds of structures."""
    numbers = {"W": 54, "V": 81, "L": 24, "R": 16}
    bases = []
    for text in MODELS.values():
        for key, count in numbers.items():
            values = ", ".join(f"{(i * 7 % 11 - 5) / 4}" for i in range(count))
            text = text.replace(f"{{{key}}}", f"{{{values}}}")
        opset = 21 if "int4" in text else 17
        imports = f'<ir_version: 10, opset_import: ["": {opset}, "own": 1]>\n'
        bases.append(onnx.parser.parse_model(imports + text))
    sparse = onnx.ModelProto.FromString(bases[0].SerializeToString())
    values = numpy_helper.from_array(np.float32([1, 2]), "b")
    entry = sparse.graph.sparse_initializer.add(dims=[3], values=values)
    entry.indices.CopyFrom(numpy_helper.from_array(np.int64([0, 2]), "i"))
    del sparse.graph.initializer[1]
    return [*bases, sparse]


def messages(message: Message) -> Iterator[Message]:
    """Yield a message and all messages inside it."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in (value,) if isinstance(value, Message) else value:
                yield from messages(inner)


def flip(data: bytes, random_: random.Random) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(data)
    for _ in range(random_.randint(1, 8) if changed else 0):
        changed[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    return bytes(changed)


def cut(data: bytes, random_: random.Random) -> bytes:
    """Delete the end or a part in the middle."""
    i, j = sorted(random_.randrange(len(data) + 1) for _ in range(2))
    return data[:i] if random_.random() < 0.5 else data[:i] + data[j:]


def splice(data: bytes, random_: random.Random) -> bytes:
    """Overwrite a part with another part."""
    length = random_.randint(1, len(data) // 4)
    i, j = (random_.randrange(len(data) - length) for _ in range(2))
    return data[:i] + data[j : j + length] + data[i + length :]


def odd(value: Any, field: Any, same: Sequence[Any], random_: random.Random) -> Any:
    """Return another value for a field: an extreme value, or one of the same field elsewhere."""
    if same and random_.random() < 0.5:
        return random_.choice(same)
    if isinstance(value, float):
        return random_.choice((0.0, -1.0, 1e38, 1e-38, math.inf, math.nan, 0.5))
    if isinstance(value, int):
        most = {field.TYPE_INT32: 31, field.TYPE_ENUM: 5}.get(field.type, 63)
        numbers = [n for n in ODD_INTS if -(2**most) <= n < 2**most]
        return random_.choice([*numbers, max(min(value + 1, 2**most - 1), 0)])
    text = random_.choice((*ODD_TEXT, flip(value if isinstance(value, bytes) else b"x", random_)))
    return text if field.type == field.TYPE_BYTES else text.decode(errors="replace")


def fields(model: onnx.ModelProto, random_: random.Random) -> None:
    """Change one to three fields anywhere: types, sizes, names, attribute values, wiring."""
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        everything = list(messages(model))
        place = random_.choice(everything)
        if not (listed := place.ListFields()):
            continue
        field, value = random_.choice(listed)
        alike = [m for m in everything if m.DESCRIPTOR is place.DESCRIPTOR]
        if isinstance(value, MutableSequence):
            change_list(value, field, [getattr(m, field.name) for m in alike], random_)
        elif field.type == field.TYPE_MESSAGE:
            if random_.random() < 0.3:
                place.ClearField(field.name)
            else:
                copy = type(value).FromString(
                    getattr(random_.choice(alike), field.name).SerializeToString()
                )
                getattr(place, field.name).CopyFrom(copy)
        elif random_.random() < 0.1:
            place.ClearField(field.name)
        else:
            same = [getattr(m, field.name) for m in alike]
            try:
                setattr(place, field.name, odd(value, field, same, random_))
            except (ValueError, TypeError):  # invalid UTF-8, or a value outside the enumeration
                place.ClearField(field.name)


def change_list(values: Any, field: Any, alike: Sequence[Any], random_: random.Random) -> None:
    """Remove, duplicate, swap or replace an item of a repeated field."""
    i = random_.randrange(len(values))
    kind = random_.randrange(4)
    if kind == 0:
        del values[i]
    elif kind == 1:
        others = random_.choice([other for other in alike if len(other)])
        values.extend([others[random_.randrange(len(others))]] * random_.choice((1, 1, 1, 9)))
    elif field.type == field.TYPE_MESSAGE:
        j = random_.randrange(len(values))
        copies = [type(v).FromString(v.SerializeToString()) for v in (values[i], values[j])]
        values[i].CopyFrom(copies[1])
        values[j].CopyFrom(copies[0])
    else:
        same = [item for other in alike for item in other]
        try:
            values[i] = odd(values[i], field, same, random_)
        except (ValueError, TypeError):
            del values[i]


def outside(model: onnx.ModelProto, folder: Path, random_: random.Random) -> None:
    """Move tensors into files, and damage the files or their references."""
    tensors = [m for m in messages(model) if isinstance(m, TensorProto)]
    for tensor in random_.sample(tensors, random_.randint(1, len(tensors))) if tensors else ():
        try:
            data = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
        except Exception:
            data = b"abcdefgh"
        name, kind, dims = tensor.name, tensor.data_type, list(tensor.dims)
        tensor.Clear()
        tensor.name, tensor.data_location = name, TensorProto.EXTERNAL
        tensor.data_type = random_.choice((kind,) * 9 + (0, 8, 22, 27, 99))
        tensor.dims.extend(dims)
        if dims and random_.random() < 0.1:
            tensor.dims[random_.randrange(len(dims))] = random_.choice(ODD_INTS)
        before = random_.choice((0, 0, 1, 64))
        file = f"w{random_.randrange(3)}"
        damage = random_.choice((None, None, None, flip, cut))
        (folder / file).write_bytes(bytes(before) + (damage(data, random_) if damage else data))
        entries: dict[str, Any] = {"location": file, "offset": before, "length": len(data)}
        if random_.random() < 0.3:
            entries[random_.choice(list(entries))] = random_.choice(
                (*ODD_INTS, "", "..", "/etc/passwd", ".", "1.5", "\u0661", "w0", "w" * 300, "w\0")
            )
        if random_.random() < 0.2:
            del entries[random_.choice(list(entries))]
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))


def damaged(bases: Sequence[onnx.ModelProto], folder: Path, random_: random.Random) -> bytes:
    """Return a mutated model; its external data are written to the folder."""
    model = onnx.ModelProto.FromString(random_.choice(bases).SerializeToString())
    kind = random_.random()
    if kind < 0.3:
        outside(model, folder, random_)
    if 0.2 < kind < 0.85:
        fields(model, random_)
    data: bytes = model.SerializeToString()
    if kind > 0.85:
        damage: Callable[[bytes, random.Random], bytes] = random_.choice((flip, flip, cut, splice))
        data = damage(data, random_)
    return data


class Counting(RunContext):
    """Context of a run that is cancelled after a number of nodes."""

    nodes_left = MOST_NODES

    def check_cancelled(self) -> None:
        self.nodes_left -= 1
        if self.nodes_left < 0:
            raise RequestCancelledError("enough")


def feed(port: TensorSpec) -> Any:
    """Return a small value for a port, or None if it accepts none."""
    shape = tuple(d if isinstance(d, int) else 2 for d in port.shape or ())
    if port.dtype is None or math.prod(shape) > MOST_ELEMENTS:
        return None
    if port.dtype == object:
        return np.full(shape, "a", object)
    return (np.arange(math.prod(shape)) % 3).reshape(shape).astype(port.dtype)


def small(model: Model) -> bool:
    """Return whether all values with an inferred shape are small."""
    return all(
        math.prod(d for d in spec.shape or () if isinstance(d, int)) <= MOST_ELEMENTS
        for spec in model.specs.values()
    )


def try_one(path: Path, core: hetero.Core | None) -> str:
    """Read, compile and run a model; return its outcome. Errors outside HeteroError are raised."""
    stage = "read"
    try:
        model = read_model(path)
        _ = model.content_hash
        stage = "types"
        if not small(model):
            return "large"
        values = [feed(port) for port in model.inputs]
        stage = "compile"
        compiled = CPUPlugin().compile_model(model, {})
        stage = "run"
        if any(value is None for value in values):
            return "no values"
        compiled.run(values, Counting())
        if core is not None:
            stage = "cut"
            pins = {n: ("CPU", "ORT")[i % 2] for i, n in enumerate(model.node_names)}
            core.compile_model(model, "HETERO:CPU,ORT", affinity=pins).close()
    except HeteroError as error:
        return f"{stage}: {type(error).__name__}"
    return "ran"


def try_all(seed: int, first: int, count: int, *, cut_each: int) -> int:
    """Try cases in order; print the number of each at its start, and the failures."""
    bases = models()
    wrong = 0
    outcomes: Counter[str] = Counter()
    slowest: tuple[float, int] = (0.0, 0)
    with hetero.Core(executor="inprocess") as core:
        for number in range(first, first + count):
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            start_s = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, CASE_S)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "m.onnx"
                path.write_bytes(damaged(bases, Path(folder), random.Random(f"{seed}/{number}")))
                try:
                    outcomes[try_one(path, None if number % cut_each else core)] += 1
                except Exception:
                    wrong += 1
                    sys.stdout.write(f"seed {seed}, case {number}: {traceback.format_exc()}\n")
            slowest = max(slowest, (time.process_time() - start_s, number))
    for outcome, times in sorted(outcomes.items()):
        sys.stdout.write(f"{times:8d} {outcome}\n")
    sys.stdout.write(f"slowest: {slowest[0]:.2f} s, case {slowest[1]}\n")
    return wrong


def supervise(seed: int, first: int, count: int, *, cut_each: int = 50) -> list[str]:
    """Try cases in child processes, with a new one after each crash; return the failures."""
    wrong = []
    end = first + count
    while first < end:
        command = [
            sys.executable,
            "-m",
            "tests.support.model_mutations",
            "--child",
            "--seed",
            str(seed),
        ]
        command += ["--first", str(first), "--count", str(end - first), "--cut", str(cut_each)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            other: list[str] = []
            for line in child.stdout:
                if line.strip().isdigit():
                    first = int(line)
                else:
                    other.append(line)
        print("".join(other), flush=True)
        if child.returncode < 0:
            name = signal.Signals(-child.returncode).name
            wrong.append(f"seed {seed}, case {first}: the process ended by {name}")
            print(wrong[-1], flush=True)
        elif child.returncode:
            wrong += [line for line in "".join(other).split("seed ") if "Traceback" in line]
        first = first + 1 if child.returncode < 0 else end
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutations and print their outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cut", type=int, default=50, help="split every N-th model")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args(arguments)
    if not options.child:
        wrong = supervise(options.seed, options.first, options.count, cut_each=options.cut)
        print(f"{len(wrong)} wrong of {options.count}")
        return int(bool(wrong))
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_NBYTES, MEMORY_NBYTES))
    return min(try_all(options.seed, options.first, options.count, cut_each=options.cut), 1)


if __name__ == "__main__":
    sys.exit(main())
