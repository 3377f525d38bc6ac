"""Atomic words and copies in memory that processes share; absent where the install found no C++ compiler."""

def copy(target: int, source: int, num_bytes: int) -> None:
    """Copy bytes from address to address."""

def load(address: int) -> int:
    """Read a word with acquire order."""

def store(address: int, value: int) -> None:
    """Write a word with release order."""

def fetch_add(address: int, value: int) -> int:
    """Add modulo 2^64; return the value before."""

def fetch_or(address: int, value: int) -> int:
    """Set bits; return the value before."""

def wait_ge(address: int, value: int, timeout_seconds: float) -> bool:
    """Wait until a word is at least a value; False on a timeout."""
