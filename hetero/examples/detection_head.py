"""Write a detection head as ONNX: deformable convolution, pooling over regions, and scores.

``python -m hetero.examples.detection_head head.onnx``
"""

import sys

import onnx

HEAD = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 22]>
    head (float[1, 8, 32, 32] image, float[18, 8, 3, 3] offsets,
          float[16, 8, 3, 3] weights, float[N, 5] regions)
        => (float[N, 64] scores)
    {
        shifts = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, offsets)
        features = DeformConv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, weights, shifts)
        active = Relu (features)
        pooled = MaxRoiPool <pooled_shape = [2, 2]> (active, regions)
        flat = Flatten (pooled)
        scores = Softmax (flat)
    }
""")

if __name__ == "__main__":
    onnx.save(HEAD, sys.argv[1])
