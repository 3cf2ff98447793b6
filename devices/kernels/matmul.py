"""Matrix products: MatMul, Gemm, Einsum, Det and the fused FusedMatMul."""
