"""hetero: one ONNX model, cut across unlike devices, pipelined over a Ray cluster."""
