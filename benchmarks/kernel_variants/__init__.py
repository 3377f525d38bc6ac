"""Forward kernels that lack one idea each, built by the benchmark alone: the product has no switches."""
