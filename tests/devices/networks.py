"""Small models and slow devices for the tests of requests."""

import threading

import numpy as np
from onnx import parser

from devices import Plugin, Program, read_model

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def model(body):
    return read_model(parser.parse_model(f"{HEADER} g {body}"))


#: Doubles its input.
DOUBLE = model("(float[N,3] x) => (float[N,3] y) {y = Add(x, x)}")
#: Two inputs, two outputs.
PAIR = model("(float[2] a, float[2] b) => (float[2] s, float[2] d) {s = Add(a, b) d = Sub(a, b)}")
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class GatedProgram(Program):
    """Runs another program once its gate is open; can be told to raise."""

    def __init__(self, plugin, program):
        self.plugin, self.program = plugin, program

    def run(self, inputs, context):
        self.plugin.entered.set()
        self.plugin.on_run()
        while not self.plugin.gate.wait(0.005):
            context.check_cancelled()
        context.check_cancelled()
        if self.plugin.error is not None:
            raise self.plugin.error
        return self.program.run(inputs, context)

    def executed_nodes(self):
        return self.program.executed_nodes()


def gated(plugin_class):
    """Return an instance of `plugin_class` whose runs wait for `gate`."""

    class Gated(plugin_class):
        def __init__(self):
            super().__init__()
            self.gate, self.entered = threading.Event(), threading.Event()
            self.gate.set()
            self.error = None
            self.on_run = lambda: None

        def compile(self, model, config):
            return GatedProgram(self, super().compile(model, config))

    plugin: Plugin = Gated()
    return plugin
