"""Error messages of ONNX Runtime and its execution providers."""

from __future__ import annotations

import re
from typing import Final

from hetero.devices.plugin.vendor_errors import VendorErrors

ERRORS: Final = VendorErrors(
    # ONNX Runtime's arenas, the C++ library, and the drivers of CUDA and other providers.
    out_of_memory=re.compile(
        r"failed to allocate|cannot allocate|out of memory|out_of_memory|bad_alloc|"
        r"available memory of \d+ is smaller|not enough (device )?memory",
        re.IGNORECASE,
    ),
    internals=re.compile(
        r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |\S+\.(cc|h):\d+ .*[)\]] |"
        r"Non-zero status code returned while running .*? Status Message: "
    ),
)
