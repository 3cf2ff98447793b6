"""Say so where a caller drops a result that is the only effect of a call."""

from __future__ import annotations

import dis
import sys
import warnings


def warn_if_unused(call: str) -> None:
    """Warn if whoever called the calling function drops what it returns.

    The bytecode tells: the value is popped next. Models never change in place, where OpenVINO's do.
    `call`: as the user is to write it, ``model = model.reshape(...)``.
    """
    frame = sys._getframe(2)
    following = (i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    instruction = next(following, None)
    if instruction is not None and instruction.opname == "POP_TOP":
        warnings.warn(
            f"the result is dropped, and the model stays as it was: write {call}.", stacklevel=3
        )
