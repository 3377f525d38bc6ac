"""Runs a CUDA compiler, and fails where its assembler has put waits of its own between matrix products.

ptxas reports such waits and goes on: products whose registers are touched too early become correct, and
ten times slower. They are remarks C7510 to C7519 ("wgmma.mma_async instructions are serialized",
"warpgroup.wait is injected"), which no option turns into errors.

Usage: compile_cuda.py nvcc arguments...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REMARK = re.compile(r"\(C751\d\)")


def main(command: list[str]) -> int:
    """Return the compiler's exit code, or 1 for a remark; a refused object is removed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    sys.stdout.write(done.stdout)
    remarks = [line for line in done.stdout.splitlines() if REMARK.search(line)]
    if done.returncode or not remarks:
        return done.returncode
    print(f"fm3: refused, the assembler serialises matrix products ({len(remarks)} remarks, see above)")
    if "-o" in command:
        Path(command[command.index("-o") + 1]).unlink(missing_ok=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
