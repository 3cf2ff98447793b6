"""The model view: one frozen ONNX graph, how it is read, typed and checked."""
