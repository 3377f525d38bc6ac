"""Parts of bench_context_parallel.py: ranks, what they compare, and how it is verified, timed and shown."""
