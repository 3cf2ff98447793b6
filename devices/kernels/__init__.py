"""The numpy kernels: one module per family of operators, all registered in `KERNELS`."""

from devices.kernels import (  # noqa: F401 - each registers its operators
    activation,
    attention,
    cast,
    control,
    conv,
    detection,
    elementwise,
    generate,
    grid_sample,
    image,
    index,
    linear_attention,
    loss,
    matmul,
    ml_features,
    ml_linear,
    ml_trees,
    norm,
    pool,
    quantize,
    random,
    recurrent,
    reduction,
    resize,
    scatter,
    sequence,
    shape,
    signal,
    slicing,
    softmax,
    text,
)
from devices.kernels.microsoft import attention as microsoft_attention  # noqa: F401
from devices.kernels.microsoft import layers, quantized  # noqa: F401 - each registers likewise
from devices.kernels.registry import ALL, KERNELS, Kernel, KernelRegistry, op

__all__ = ["ALL", "KERNELS", "Kernel", "KernelRegistry", "op"]
