"""Small models for the tests of devices and requests."""

import numpy as np
from onnx import parser

from hetero.devices import read_model


def model(body, opset=17, ir=8):
    """Return the model of a graph in text form; it also imports an unknown domain ``x.y``."""
    header = f'<ir_version: {ir}, opset_import: ["" : {opset}, "x.y" : 1]>'
    return read_model(parser.parse_model(f"{header} g {body}"))


#: Doubles its input.
DOUBLE = model("(float[N,3] x) => (float[N,3] y) {y = Add(x, x)}")
#: Two inputs, two outputs.
PAIR = model("(float[2] a, float[2] b) => (float[2] s, float[2] d) {s = Add(a, b) d = Sub(a, b)}")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
