"""Triton kernels of the extension, each with a plain-torch reference beside it."""
