"""What a mask, a partition and a transfer are; numpy only.

The column mask gives each key column two half-open spans of hidden rows: O(keys) for any of the structured
masks of long-context training. This package holds the mask's algebra, its localization to the rows of one
rank without communication, exact counts and block maps, and the nouns that planner, exchange and runtime
share.
"""

from fm3_core import documents, patterns
from fm3_core.blocks import CUT_BY_LOWER, CUT_BY_UPPER, EMPTY, FULL, PARTIAL, BlockMap
from fm3_core.cluster import Cluster
from fm3_core.errors import (
    ExchangeError,
    Fm3Error,
    MaskError,
    PartitionError,
    PlanError,
    UnknownNameError,
    UnsupportedError,
)
from fm3_core.extrema import BlockExtrema
from fm3_core.localize import localize, localize_by_definition
from fm3_core.mask import ColumnMask, pack
from fm3_core.partition import Partition
from fm3_core.registry import Registry
from fm3_core.transfer import Exchange, Transfer
from fm3_core.workload import block_counts, needs, visible_pairs_by_chunk, visible_pairs_by_row_range

__all__ = [
    "CUT_BY_LOWER",
    "CUT_BY_UPPER",
    "EMPTY",
    "FULL",
    "PARTIAL",
    "BlockExtrema",
    "BlockMap",
    "Cluster",
    "ColumnMask",
    "Exchange",
    "ExchangeError",
    "Fm3Error",
    "MaskError",
    "Partition",
    "PartitionError",
    "PlanError",
    "Registry",
    "Transfer",
    "UnknownNameError",
    "UnsupportedError",
    "block_counts",
    "documents",
    "localize",
    "localize_by_definition",
    "needs",
    "pack",
    "patterns",
    "visible_pairs_by_chunk",
    "visible_pairs_by_row_range",
]
