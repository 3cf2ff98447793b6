"""A device whose runs can be held, and what is run on it."""

import threading
from dataclasses import dataclass, field

from hetero.devices import Program
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.networks import model

#: Doubles what is not negative, in two nodes.
DOUBLE = model("(float[N,3] x) => (float[N,3] y) {h = Relu(x) y = Add(x, h)}")


@dataclass
class Held:
    """What runs wait for, what tells that one has begun, and what it then raises."""

    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def __post_init__(self):
        self.gate.set()

    def on_run(self):
        """Do nothing more."""


class HeldProgram(Program):
    """Runs another program once its gate is open; can be told to raise."""

    def __init__(self, held, program):
        self.held, self.program = held, program

    def run(self, inputs, context):
        self.held.entered.set()
        self.held.on_run()
        while not self.held.gate.wait(0.005):
            context.check_cancelled()
        context.check_cancelled()
        if self.held.error is not None:
            raise self.held.error
        return self.program.run(inputs, context)

    def executed_nodes(self):
        return self.program.executed_nodes()


def held_plugin(held):
    """Return the plugin DENSE, whose runs are held."""

    class HeldPlugin(DensePlugin):
        def compile(self, model, config):
            return HeldProgram(held, super().compile(model, config))

    return HeldPlugin
