"""The OV device: OpenVINO and its own devices."""
