"""Operators of ONNX Runtime's own domain that its quantiser, optimiser and model builder write."""

from typing import Final

#: The domain's name.
MICROSOFT: Final = "com.microsoft"
