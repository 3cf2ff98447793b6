"""Convolutions: Conv, ConvTranspose, DeformConv and the fused FusedConv."""
