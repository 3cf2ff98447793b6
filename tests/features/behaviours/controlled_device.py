"""A device whose runs tests can block and fail, and a model for it."""

import threading
from dataclasses import dataclass, field

from hetero.devices import Program
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.networks import model

#: Doubles non-negative inputs, in two nodes.
DOUBLE = model("(float[N,3] x) => (float[N,3] y) {h = Relu(x) y = Add(x, h)}")


@dataclass
class RunControl:
    """Events and the error that control the runs of a device.

    Runs wait while `gate` is clear; `entered` is set when one starts; `error` is raised by runs.
    """

    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def __post_init__(self):
        self.gate.set()

    def on_run(self):
        """Run at the start of each run; tests replace it."""


class ControlledProgram(Program):
    """A program that waits at the gate before it runs another program."""

    def __init__(self, control, program):
        self.control, self.program = control, program

    def run(self, inputs, context):
        self.control.entered.set()
        self.control.on_run()
        while not self.control.gate.wait(0.005):
            context.check_cancelled()
        context.check_cancelled()
        if self.control.error is not None:
            raise self.control.error
        return self.program.run(inputs, context)

    def executed_nodes(self):
        return self.program.executed_nodes()


def controlled_plugin(control):
    """Return the class of plugin DENSE with controlled runs."""

    class ControlledPlugin(DensePlugin):
        def compile(self, model, config):
            return ControlledProgram(control, super().compile(model, config))

    return ControlledPlugin
