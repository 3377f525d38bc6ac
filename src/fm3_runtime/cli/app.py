"""The command's entry, and the one place where errors become a sentence and an exit code."""

from __future__ import annotations

import io
import signal
import sys
from typing import NoReturn

import typer

from fm3_core import Fm3Error
from fm3_runtime.cli.advise import advise
from fm3_runtime.cli.attend import attend
from fm3_runtime.cli.calibrate import calibrate
from fm3_runtime.cli.compare import compare
from fm3_runtime.cli.doctor import doctor
from fm3_runtime.cli.mask import mask
from fm3_runtime.cli.output import print_error
from fm3_runtime.cli.plan import plan
from fm3_runtime.launch import RankError

CHECK_FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130
TERMINATED = 143

app = typer.Typer(
    name="fm3",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Exact attention with structured masks over long packed sequences, on one device or many ranks.",
    epilog="Exit codes: 0 done; 1 a check failed or a rank died; 2 a mistake in what was asked; "
    "130 interrupted.",
)
app.command()(attend)
app.command()(plan)
app.command()(compare)
app.command()(mask)
app.command()(advise)
app.command()(calibrate)
app.command()(doctor)


def main() -> NoReturn:
    """Run the command that sys.argv names, and exit."""
    as_json = "--json" in sys.argv
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these signs, a name that is no text
    try:
        app()
    except RankError as error:
        print_error(str(error), as_json)
        sys.exit(USER_MISTAKE if error.user_error else CHECK_FAILED)
    except Fm3Error as error:
        print_error(str(error), as_json)
        sys.exit(USER_MISTAKE)
    except OSError as error:
        print_error(f"input or output failed: {error.strerror or error}", False)
        sys.exit(CHECK_FAILED)
    except KeyboardInterrupt:
        print_error("interrupted", as_json)
        sys.exit(INTERRUPTED)
    sys.exit(0)
