"""An emulated GPU: arrays with CuPy's restrictions in host memory, and the GPU plugin on them."""
