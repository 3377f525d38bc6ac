"""One-sided communication on CUDA devices by NVSHMEM; built where nvcc and NVSHMEM are."""

from enum import Enum

class WaitKind(Enum):
    NOTHING = 0
    LANDED = 1
    OPENED = 2
    CLOSED = 3
    WORK_DONE = 4
    CONTRIBUTORS = 5
    WORD = 6

class Wire(Enum):
    FLOAT32 = 0
    BFLOAT16 = 1

class Fetch(Enum):
    OR = 0
    ADD = 1

class SlotLayout:
    def __init__(
        self,
        *,
        k_start: int,
        v_start: int,
        k_token_bytes: int,
        v_token_bytes: int,
        batch: int,
        num_slots: int,
        chunk_tokens: int,
    ) -> None: ...

class WaitLimit:
    def __init__(self, *, nanoseconds: int, report: int) -> None: ...

def build_info() -> dict[str, object]: ...
def host_library_version() -> list[int]: ...
def row_sizes() -> dict[str, int]: ...
def make_job_id() -> bytes: ...
def join_job(rank: int, num_ranks: int, id: bytes) -> None: ...
def leave_job() -> None: ...
def allocate(num_bytes: int) -> int: ...
def release(memory: int) -> None: ...
def mapped_at(memory: int, rank: int) -> int: ...
def get(*, target: int, source: int, num_bytes: int, rank: int, stream: int) -> None: ...
def put_signal(
    *,
    target: int,
    source: int,
    num_bytes: int,
    word: int,
    value: int,
    adds: bool,
    rank: int,
    stream: int,
) -> None: ...
def signal_word(*, word: int, value: int, adds: bool, rank: int, stream: int) -> None: ...
def quiet(*, stream: int) -> None: ...
def pull(
    *,
    chunks: int,
    num_chunks: int,
    readers: int,
    seen: int,
    buffer: int,
    landed: int,
    ready: int,
    finished_ctas: int,
    resident_ctas: int,
    layout: SlotLayout,
    limit: WaitLimit,
    epoch: int,
    num_ctas: int,
    stream: int,
) -> None: ...
def put(
    *,
    chunks: int,
    num_chunks: int,
    dk: int,
    dv: int,
    final: int,
    words: int,
    buffer: int,
    finished_ctas: int,
    layout: SlotLayout,
    limit: WaitLimit,
    epoch: int,
    contributions_start: int,
    contribution_bytes: int,
    staging_start: int,
    wire: Wire,
    rank: int,
    num_ctas: int,
    stream: int,
) -> None: ...
def reduce(
    *,
    chunks: int,
    num_chunks: int,
    expected: int,
    buffer: int,
    words: int,
    final: int,
    dk: int,
    dv: int,
    finished_ctas: int,
    layout: SlotLayout,
    limit: WaitLimit,
    epoch: int,
    contributions_start: int,
    contribution_bytes: int,
    wire: Wire,
    rank: int,
    words_per_mask: int,
    num_ctas: int,
    stream: int,
) -> None: ...
def signal(*, signals: int, num_signals: int, words: int, value: int, stream: int) -> None: ...
def await_words(
    *,
    awaited: int,
    num_awaited: int,
    words: int,
    limit: WaitLimit,
    kind: WaitKind,
    value: int,
    stream: int,
) -> None: ...
def fetch(*, operation: Fetch, word: int, value: int, rank: int, result: int, stream: int) -> None: ...
def find_seen_chunks(
    *,
    lts: int,
    lte: int,
    uts: int,
    ute: int,
    seen: int,
    num_masks: int,
    num_keys: int,
    num_rows: int,
    chunk_tokens: int,
    stream: int,
) -> None: ...
