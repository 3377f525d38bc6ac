"""Attention over the ranks that share a sequence: a planner and a backend wired into one autograd op.

`ContextParallel.plan(mask)` makes a `Step` once a batch; every layer calls `attention(q, k, v, step)`. The
same call with a mask instead of a step runs on one device. The `fm3` command lives here too.
"""

from fm3_runtime.attention import attention
from fm3_runtime.context_parallel import ContextParallel
from fm3_runtime.named_masks import mask_names, named_mask
from fm3_runtime.packing import DocumentError, PackedDocuments, pack_documents
from fm3_runtime.step import Step

__all__ = [
    "ContextParallel",
    "DocumentError",
    "PackedDocuments",
    "Step",
    "attention",
    "mask_names",
    "named_mask",
    "pack_documents",
]
