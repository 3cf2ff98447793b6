"""The ORT device: ONNX Runtime."""
