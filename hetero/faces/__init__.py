"""Drop-in replacements for the Python APIs of OpenVINO, ONNX Runtime and ONNX's backend."""
