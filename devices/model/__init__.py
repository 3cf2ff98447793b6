"""Immutable ONNX models: reading, type inference, validation and extensions."""
