"""ONNX models from published packages, compared with ONNX Runtime."""
