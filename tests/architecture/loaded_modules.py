"""What a statement loads, seen in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_REPORT = "print('loaded:', *sorted(set(sys.modules) & set({names!r})))"


def loaded(statement: str, names: Iterable[str], *, path: Path | None = None) -> list[str]:
    """Run a statement in a fresh interpreter and return which of the named modules it loaded.

    Args:
        statement: Python source; may raise SystemExit.
        names: top-level modules to look for.
        path: a folder to import from first.
    """
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(path)!r})" if path else "",
        "try:",
        *(f"    {line}" for line in statement.splitlines()),
        "except SystemExit:",
        "    pass",
        _REPORT.format(names=sorted(names)),
    ]
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    last = run.stdout.splitlines()[-1]
    return last.removeprefix("loaded:").split()
