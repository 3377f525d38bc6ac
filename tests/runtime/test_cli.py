"""The `fm3` command as a user meets it: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fm3_runtime import mask_names

LENGTHS = ["--lengths", "2538,1742,3912"]


def test_attend_prints_loads_bytes_time_and_errors(fm3):
    done = fm3(
        "attend", "--tokens", "1500", "--ranks", "2", "--heads", "2", "--kv-heads", "1", "--head-dim", "16"
    )
    assert done.returncode == 0, done.stderr
    for text in ("1,500 tokens", "density", "load", "sent", "pruned", "forward", "backward", "within bounds"):
        assert text in done.stdout
    assert "Traceback" not in done.stderr


def test_attend_json_holds_the_plan_the_ranks_and_the_errors(fm3_json):
    found = fm3_json(
        "attend", "--tokens", "1500", "--ranks", "2", "--heads", "2", "--kv-heads", "1", "--head-dim", "16",
        "--planner", "zigzag", "--mask", "document", "--dtype", "bfloat16",
    )  # fmt: skip
    assert found["tokens"] == 1500
    assert found["plan"]["planner"] == "zigzag"
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["errors"]["within_bounds"] is True


def test_attend_joins_the_ranks_of_torchrun():
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "fm3_runtime", "attend",
         "--tokens", "1200", "--heads", "2", "--kv-heads", "1", "--head-dim", "16", "--json"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["tokens"], len(found["ranks"]), found["errors"]["within_bounds"]) == (1200, 2, True)


def test_plan_prints_figures_with_their_bounds(fm3):
    done = fm3("plan", *LENGTHS, "--ranks", "4", "--ranks-per-node", "2")
    assert done.returncode == 0, done.stderr
    for text in ("8,192 tokens", "4 ranks in 2 nodes", "largest load (T)", "between nodes (N)", "average"):
        assert text in done.stdout


def test_plan_json_places_every_chunk_once(fm3_json):
    found = fm3_json("plan", *LENGTHS, "--ranks", "4", "--chunk-size", "512")
    assert sorted(chunk for chunks in found["chunks_by_rank"] for chunk in chunks) == list(range(16))
    assert found["compute"] == max(found["loads"]) >= found["compute_bound"]["value"]


def test_compare_lists_every_planner_that_takes_the_problem(fm3, fm3_json):
    found = fm3_json("compare", *LENGTHS, "--ranks", "4")
    assert {"contiguous", "lpt", "striped", "zigzag"} <= set(found["plans"])
    assert "brute_force" in found["refused"]
    printed = fm3("compare", *LENGTHS, "--ranks", "4").stdout
    assert printed.index("lpt") < printed.index("contiguous")


def test_compare_with_named_planners_takes_those_only(fm3_json):
    found = fm3_json(
        "compare",
        *LENGTHS,
        "--ranks",
        "2",
        "--chunk-size",
        "1024",
        "--planner",
        "lpt",
        "--planner",
        "brute_force",
    )
    assert list(found["plans"]) == ["lpt", "brute_force"]
    assert found["plans"]["brute_force"]["compute"] <= found["plans"]["lpt"]["compute"]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_mask_prints_and_draws_its_block_map(fm3, tmp_path, suffix):
    picture = tmp_path / f"mask.{suffix}"
    done = fm3("mask", *LENGTHS, "--save", str(picture))
    assert done.returncode == 0, done.stderr
    assert "density 0.1847" in done.stdout
    assert "██▒▒" in done.stdout
    assert picture.stat().st_size > 1000


def test_mask_json_counts_blocks(fm3_json):
    found = fm3_json("mask", *LENGTHS, "--block", "128")
    blocks = found["blocks"]
    assert blocks["empty"] + blocks["partial"] + blocks["full"] == 64 * 64
    assert found["startend_row_indices"] == {"vectors": 1, "causal": True}


def test_mask_lists_the_names(fm3):
    assert fm3("mask", "--list").stdout.split() == mask_names()


def test_doctor_says_what_runs_and_why_the_rest_does_not(fm3, fm3_json):
    found = fm3_json("doctor")
    assert found["engines"]["tiled"] == []
    assert all(isinstance(reason, str) for reason in found["engines"]["hopper"])
    assert found["backends"]["loopback"] == []
    assert found["memories"]["in_process"] == []
    assert set(found["memories"]) <= set(found["backends"])
    assert "hopper" in fm3("doctor").stdout


@pytest.mark.parametrize("verb", ["attend", "plan", "compare", "mask", "doctor"])
def test_help_has_an_example(fm3, verb):
    done = fm3(verb, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert f"fm3 {verb}" in done.stdout


def _folder_with_binaries(folder: Path) -> str:
    (folder / "a.bin").write_bytes(b"\0\1")
    return str(folder)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plan", "--lengths", "1,x"], "lengths[1] must be an integer, got 'x'"),
        (["plan", "--lengths", "5,-1"], "lengths[1] must be >= 0, got -1"),
        (["plan", "--lengths", "3", "--ranks", "4"], "ranks"),
        (["plan", "--lengths", "64", "--planner", "best"], "unknown planner 'best'; known: "),
        (["mask", "--lengths", "64", "--mask", "spiral"], "unknown mask 'spiral'; known: "),
        (["mask", "--lengths", "64", "--save", "map.bmp"], "must end in .png or .svg, got 'map.bmp'"),
        (["mask", "--lengths", "64", "--tokens", "64"], "--lengths says everything"),
        (["attend", "--documents", "/no/such/folder"], "/no/such/folder does not exist"),
        (["attend", "--heads", "3", "--kv-heads", "2"], "heads=3 must be a multiple of kv_heads=2"),
        (["attend", "--tokens", "3", "--ranks", "4"], "3 tokens cannot be shared by 4 ranks"),
        (
            ["attend", "--tokens", "64", "--ranks", "2", "--planner", "best"],
            "unknown planner 'best'; known: ",
        ),
        (["attend", "--dtype", "int8"], "unknown dtype 'int8'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(fm3, arguments, text):
    done = fm3(*arguments)
    assert done.returncode == 2
    printed = " ".join(done.stderr.split())
    assert printed.startswith("error: ")
    assert text in printed
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_folder_without_text_names_the_first_file_left_out(fm3, tmp_path):
    done = fm3("attend", "--documents", _folder_with_binaries(tmp_path))
    assert done.returncode == 2
    assert "a.bin: binary (it holds a NUL byte)" in " ".join(done.stderr.split())


def test_file_names_that_look_like_markup_are_printed_as_they_are(fm3, tmp_path):
    (tmp_path / "[").mkdir()
    (tmp_path / "[" / "red].txt").write_text("some text")
    (tmp_path / "[bold]").write_bytes(b"\0")
    done = fm3(
        "attend", "--documents", str(tmp_path), "--tokens", "9", "--ranks", "1", "--no-check",
        "--heads", "1", "--kv-heads", "1", "--head-dim", "4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "([/red].txt ... [/red].txt)" in done.stdout


def _run_into(stdout: Any, *arguments: str, encoding: str = "utf-8") -> Any:
    return subprocess.run(
        [sys.executable, "-m", "fm3_runtime", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_is_one_sentence(form):
    with open("/dev/full", "w") as full:
        done = _run_into(full, "mask", "--lengths", "3,4", *form)
    assert done.returncode == 1
    assert done.stderr == "error: input or output failed: No space left on device\n"


def test_a_terminal_without_block_characters_gets_question_marks():
    done = _run_into(subprocess.PIPE, "mask", "--lengths", "3,4", encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert "??" in done.stdout


def test_a_mistake_is_json_where_json_was_asked_for(fm3):
    done = fm3("plan", "--lengths", "1,x", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"].startswith("lengths[1] must be an integer")


def test_help_loads_no_solver_and_no_plotting():
    code = (
        "import sys\nfrom fm3_runtime.cli import main\nsys.argv = ['fm3', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'ortools', 'pulp', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)], ids=["stdout", "stderr", "both"])
@pytest.mark.parametrize(("lengths", "code"), [("3,4", 0), ("3,x", 2)])
def test_a_caller_may_close_the_streams(closed, lengths, code):
    close = "".join(f"os.close({stream}); " for stream in closed)
    arguments = [sys.executable, "-m", "fm3_runtime", "mask", "--lengths", lengths]
    code_of_child = f"import os; {close}os.execv({sys.executable!r}, {arguments!r})"
    done = subprocess.run([sys.executable, "-c", code_of_child], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
