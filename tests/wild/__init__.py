"""Models that nobody here wrote: ONNX files from published packages, held to ONNX Runtime."""
