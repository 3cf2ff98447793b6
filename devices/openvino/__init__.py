"""The OV device: OpenVINO and its own devices."""

import sys

# Its import sends statistics of use from a fork of the user's process; without the module that does
# it sends none. Who wants them imports openvino first.
if "openvino" not in sys.modules:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as Python has it
