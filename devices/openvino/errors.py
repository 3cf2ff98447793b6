"""Patterns that classify and shorten the error messages of OpenVINO and its devices."""

from __future__ import annotations

import re
from typing import Final

from hetero.devices.plugin.vendor_errors import VendorErrors

ERRORS: Final = VendorErrors(
    # The C++ library, and the drivers of OpenCL and Level Zero.
    out_of_memory=re.compile(
        r"failed to allocate|cannot allocate|out of memory|out_of_memory|bad_alloc|"
        r"not enough (device )?memory",
        re.IGNORECASE,
    ),
    internals=re.compile(
        r"Exception from \S+:\d+:?\s*|Check '.*' failed at \S+:?\s*|"
        r"FrontEnd API failed with \w+:\s*|To facilitate the conversion of .*"
    ),
)
