"""Warning about calls that have no effect because the caller ignores their result."""

from __future__ import annotations

import dis
import sys
import warnings


def warn_if_unused(call: str) -> None:
    """Warn if the user's code ignores the result of the function that called this one.

    OpenVINO changes models in place; here models are immutable, so an ignored result is a mistake.
    The next bytecode instruction of the user's code reveals it: POP_TOP discards the value. `call`
    is the correct form of the call, such as ``model = model.reshape(...)``.
    """
    frame = sys._getframe(2)
    instructions = (i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    instruction = next(instructions, None)
    if instruction is not None and instruction.opname == "POP_TOP":
        warnings.warn(
            f"the result of this call is ignored, and the model does not change; write {call}.",
            stacklevel=3,
        )
