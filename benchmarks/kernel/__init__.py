"""What the kernel benchmark is made of: masks, cells, engines, clocks, verification, results."""
