"""The CUDA extension, where it was built: `_C` is absent where the install found no nvcc to use.

Addresses are device addresses and a stream's; the caller has checked the tensors and holds them alive.
Every function returns without waiting for the device.
"""

class DeviceError(RuntimeError):
    """What failed on the device or its driver, and where in the sources."""

class RowTensor:
    """A [batch, rows, heads, head_dim] tensor in device memory, head_dim contiguous."""

    def __init__(self, data: int, shape: list[int], strides: list[int]) -> None:
        """Strides are elements of the first three dimensions."""

class PreparedMask:
    """The arrays that `prepare_mask` fills."""

    def __init__(
        self,
        *,
        batch: int,
        heads: int,
        num_rows: int,
        num_keys: int,
        block_rows: int,
        columns: int,
        extrema: int,
        row_blocks: int,
        keep: int,
    ) -> None:
        """`keep` is 0 or the address of uint8 [batch, heads, row blocks, key blocks]."""

class ReadyFlags:
    """When which chunk of keys may be read."""

    def __init__(self, *, epochs: int, epoch: int, blocks_per_chunk: int) -> None:
        """`epochs` is 0 where all keys are there, or the address of uint32 [chunks]."""

def build_info() -> dict[str, str]:
    """Return what the extension was built with: "nvcc", its version, and "architecture"."""

def forward_instances() -> dict[str, dict[str, int]]:
    """Return the compiled forward kernels by name: block_rows, head_dim, float_output."""

def prepared_sizes(batch: int, heads: int, num_rows: int, num_keys: int, block_rows: int) -> list[int]:
    """Return the bytes of a prepared mask's columns, extrema and row blocks, and of the scratch."""

def prepare_mask(
    *,
    lts: int,
    lte: int,
    uts: int,
    ute: int,
    mask: PreparedMask,
    unsorted: int,
    block_rows: int,
    stream: int,
) -> None:
    """Fill the mask's arrays from int32 [batch, heads, keys] vectors; `unsorted` is scratch."""

def forward(
    *,
    name: str,
    q: RowTensor,
    k: RowTensor,
    v: RowTensor,
    out: RowTensor,
    lse: int,
    mask: PreparedMask,
    ready: ReadyFlags,
    next_tile: int,
    softmax_scale: float,
    band_rows: int,
    section_pairs: int,
    num_ctas: int,
    stream: int,
) -> None:
    """Start the forward kernel of that name.

    Args:
        name: one of `forward_instances`.
        q: 16-bit, base and strides multiples of 16 bytes.
        k: the same.
        v: the same.
        out: the same, or float32 and contiguous where the instance has float_output.
        lse: address of float32 [batch, query heads, rows].
        mask: prepared for the instance's block_rows.
        ready: flags of chunks of keys.
        next_tile: address of an int32 of scratch.
        softmax_scale: above 0.
        band_rows: row blocks, of all, that every section works on before any goes on.
        section_pairs: (batch entry, query head) pairs that are worked on side by side.
        num_ctas: CTAs to start, 0 for one a multiprocessor.
        stream: the stream; the tensors' device is the current one.

    Raises:
        DeviceError: the problem does not fit the instance, or the launch failed.
    """

class BackwardLists:
    """The arrays that `prepare_backward` fills."""

    def __init__(self, *, mask: PreparedMask, records: int, sorted: int, visits: int) -> None:
        """Take addresses."""

class DoneFlags:
    """Who is told when the gradients of a chunk of keys are in place."""

    def __init__(self, *, epochs: int, epoch: int, blocks_per_chunk: int, stored: int) -> None:
        """`epochs` is 0 or the address of uint32 [chunks]; `stored` that of int32 [chunks] of scratch."""

def backward_instances() -> dict[str, dict[str, int]]:
    """Return the compiled backward kernels by name: block_rows, head_dim."""

def backward_sizes(batch: int, heads: int, num_rows: int, num_keys: int) -> list[int]:
    """Return the bytes of a mask's records, sorted records and visits."""

def prepare_backward(*, mask: PreparedMask, lists: BackwardLists, kv_heads: int, stream: int) -> None:
    """Fill the lists of a prepared mask."""

def backward(
    *,
    name: str,
    q: RowTensor,
    k: RowTensor,
    v: RowTensor,
    out: RowTensor,
    d_out: RowTensor,
    lse: int,
    d_lse: int,
    dq: RowTensor,
    dk: RowTensor,
    dv: RowTensor,
    float_kv: bool,
    mask: PreparedMask,
    lists: BackwardLists,
    done: DoneFlags,
    dq_sums: int,
    row_terms: int,
    turns: int,
    next_tile: int,
    softmax_scale: float,
    dq_scale: float,
    section_pairs: int,
    num_ctas: int,
    stream: int,
) -> None:
    """Start the backward kernel of that name, and what comes before and after it.

    Args:
        name: one of `backward_instances`.
        q: 16-bit, base and strides multiples of 16 bytes.
        k: the same.
        v: the same.
        out: the same; with address 0, rowsum(dout * out) is part of d_lse, negated.
        d_out: the same.
        lse: address of float32 [batch, query heads, rows].
        d_lse: the same, or 0.
        dq: as q.
        dk: as q, or float32 and contiguous with `float_kv`.
        dv: the same.
        float_kv: dk and dv are float32.
        mask: prepared.
        lists: of that mask.
        done: flags of chunks of keys.
        dq_sums: address of float32 [batch * query heads * row blocks * 64 * head dim] of scratch.
        row_terms: address of float32 [batch * query heads * row blocks * 128] of scratch.
        turns: address of int32 [batch * query heads * row blocks] of scratch.
        next_tile: address of an int32 of scratch.
        softmax_scale: above 0.
        dq_scale: factor of dq, softmax_scale where q is what the user gave.
        section_pairs: (batch entry, kv head) pairs that are worked on side by side.
        num_ctas: CTAs to start, 0 for one a multiprocessor.
        stream: the stream; the tensors' device is the current one.

    Raises:
        DeviceError: the problem does not fit the instance, or a launch failed.
    """
