"""The CUDA extension, where it was built: `_C` is absent where the install found no nvcc to use."""

def build_info() -> dict[str, str]:
    """Return what the extension was built with: "nvcc", its version, and "architecture"."""

def block_extrema(
    *,
    lts: int,
    lte: int,
    uts: int,
    ute: int,
    table: int,
    num_masks: int,
    num_keys: int,
    num_rows: int,
    block_keys: int,
    stream: int,
) -> None:
    """Fill the extrema of a mask's vectors over blocks of key columns; returns without waiting.

    Args:
        lts: device address of int32 [masks, keys], masks = batch * heads, contiguous.
        lte: the same.
        uts: the same.
        ute: the same.
        table: device address of int32 [8, masks, key blocks], written: max start, min end over all columns,
            max end, min start over the columns whose span is not empty; lower span first, then the upper one.
        num_masks: batch * heads.
        num_keys: key columns of a mask.
        num_rows: rows of a mask.
        block_keys: key columns of a block, at least 1; the last block may be shorter.
        stream: address of the CUDA stream, 0 for the default one; the tensors' device is the current one.

    Raises:
        RuntimeError: a size is out of range, or the launch failed.
    """
