"""Operators in ONNX Runtime's domain, which its quantiser, optimiser and model builder write."""

from typing import Final

#: The domain's name.
MICROSOFT: Final = "com.microsoft"
