"""The OV device: OpenVINO and its devices."""

import sys

# OpenVINO's import sends usage statistics from a forked process, unless this module is missing.
# Users who want to send them import openvino before hetero.
if "openvino" not in sys.modules:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as Python has it
