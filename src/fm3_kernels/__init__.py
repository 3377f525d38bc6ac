"""Exact attention under a column mask on one device: the operation, its engines, and its bridges to torch.

`attention` is the differentiable operation; `attention_forward` and `attention_backward` are its halves
outside of autograd; `merge` joins partial results over disjoint keys; `DeviceMask` is a mask made once a
batch and shared by all layers; `flex` converts from and to FlexAttention; `engines` holds the
implementations by name and `why_unsupported` says which of them cannot serve a call.
"""

from fm3_kernels import flex, hopper
from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.engine import Engine
from fm3_kernels.merge import merge
from fm3_kernels.ops import attention, attention_backward, attention_forward
from fm3_kernels.reference import ReferenceEngine
from fm3_kernels.support import engines, why_unsupported
from fm3_kernels.tiled import TiledEngine

__all__ = [
    "DeviceMask",
    "Engine",
    "ReferenceEngine",
    "TiledEngine",
    "attention",
    "attention_backward",
    "attention_forward",
    "engines",
    "flex",
    "hopper",
    "merge",
    "why_unsupported",
]
