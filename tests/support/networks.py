"""Small models for the tests of devices and requests."""

import numpy as np
from onnx import parser

from devices import read_model

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def model(body):
    return read_model(parser.parse_model(f"{HEADER} g {body}"))


#: Doubles its input.
DOUBLE = model("(float[N,3] x) => (float[N,3] y) {y = Add(x, x)}")
#: Two inputs, two outputs.
PAIR = model("(float[2] a, float[2] b) => (float[2] s, float[2] d) {s = Add(a, b) d = Sub(a, b)}")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
