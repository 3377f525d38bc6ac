"""The kernel benchmark on a CPU: what it times, refuses, keeps, and prints."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fm3_planner import calibrate

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import bench_kernel  # noqa: E402 - benchmarks are no package
from kernel.cell import Cell, Shape  # noqa: E402
from kernel.engines import ENGINES, ascending, torch_engine  # noqa: E402
from kernel.masks import MASKS, benchmark_mask  # noqa: E402
from kernel.page import tables  # noqa: E402
from kernel.results import Results, best_peers, geometric_mean, ratios, summary  # noqa: E402

SHAPE = Shape(256, 2, 1, 16, torch.float32)
SMALL = [
    *("--device", "cpu", "--dtype", "float32", "--tokens", "256", "--lengths", "128", "256"),
    *(
        "--heads",
        "2",
        "--kv-heads",
        "1",
        "--dim",
        "16",
        "--rounds",
        "1",
        "--budget-ms",
        "1",
        "--pause-ms",
        "0",
    ),
]


@pytest.fixture
def add_engine(monkeypatch):
    """Return a function that adds an engine for a test."""
    return lambda name, engine: monkeypatch.setitem(ENGINES, name, engine)


def test_every_mask_is_timed_once_and_kept(tmp_path, capsys):
    options = [*SMALL, "--engines", "tiled", "--json", str(tmp_path / "x.json")]
    bench_kernel.main(options)
    content = json.loads((tmp_path / "x.json").read_text())
    assert {(r["cell"], r["tokens"]) for r in content["results"]} == {
        (m, n) for m in MASKS for n in (128, 256)
    }
    assert all(r[which] > 0 for r in content["results"] for which in ("forward", "backward", "both"))
    assert "tiled, both, 24 cells: alone" in capsys.readouterr().out
    bench_kernel.main(options)
    assert json.loads((tmp_path / "x.json").read_text()) == content
    assert "full  " not in capsys.readouterr().out


def _wrong(which):
    """Return the tiled engine with one result that is wrong in one place."""

    def passes(cell):
        right = torch_engine("tiled")(cell)

        def forward():
            out, lse = right.forward()
            out[0, 0, 0, 0] += 1.0 if which == "out" else 0.0
            lse[0, 0, 0] += 1.0 if which == "lse" else 0.0
            return out, lse

        def both():
            gradients = right.both()
            gradients[0][0, :, 0] += 1.0 if which == "dq" else 0.0
            gradients[2][0, 3, 0, 0] = torch.nan if which == "dv" else gradients[2][0, 3, 0, 0]
            return gradients

        return replace(right, forward=forward, both=both)

    return passes


@pytest.mark.parametrize("which", ["out", "lse", "dq", "dv"])
def test_a_wrong_engine_gets_no_time(which, tmp_path, capsys, add_engine):
    add_engine("wrong", _wrong(which))
    bench_kernel.main(
        [*SMALL, "--masks", "causal", "--engines", "tiled", "wrong", "--json", str(tmp_path / "x.json")]
    )
    content = json.loads((tmp_path / "x.json").read_text())
    wrong = [result for result in content["results"] if result["engine"] == "wrong"]
    assert len(wrong) == 2
    assert all("reason" in result and "forward" not in result for result in wrong)
    assert "wrong: WRONG" in capsys.readouterr().out


def test_counted_blocks_fit_what_calibrate_reads(tmp_path, add_engine):
    def counted(cell):
        return replace(torch_engine("tiled")(cell), block_rows=64, block_rows_back=32, block_keys=64)

    add_engine("counted", counted)
    path = tmp_path / "x.json"
    bench_kernel.main([*SMALL, "--engines", "counted", "--json", str(path)])
    cells = calibrate.read_cells(path)
    assert {(cell.direction, cell.block_rows) for cell in cells} == {("forward", 64), ("backward", 32)}
    full = next(
        c for c in json.loads(path.read_text())["cells"] if c["cell"] == "full" and c["tokens"] == 128
    )
    assert (full["full_blocks"], full["partial_blocks"], full["row_blocks"]) == (2 * 2 * 4, 0, 2 * 2 * 2)


def test_a_result_takes_the_place_of_an_older_one(tmp_path):
    results = Results.read(tmp_path / "x.json")
    record = {"cell": "full", "tokens": 8, "engine": "a", **SHAPE.key}
    results.keep(record | {"forward": 1.0}, [{**record, "direction": "forward"}])
    results.keep({**record, "engine": "b"} | {"reason": "it does not have this mask"})
    results.keep(record | {"forward": 2.0, "backward": 3.0}, [])
    again = Results.read(tmp_path / "x.json")
    assert again.rates("a", "forward", SHAPE.key) == {("full", 8): 2.0}
    assert again.content["cells"] == []
    assert again.has(record, ["forward", "backward"])
    assert not again.has(record, ["both"])
    assert again.has({**record, "engine": "b"}, ["both"])


def test_summaries_are_geometric_means(tmp_path):
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None
    assert ratios({("a", 1): 6.0, ("b", 1): 1.0}, {("a", 1): 3.0}) == [2.0]
    best = best_peers("both")
    assert len(best) == 36
    assert best["full", 32768] == pytest.approx(14 / (4 / 706 + 10 / 629))
    assert geometric_mean(list(best_peers("forward").values())) == pytest.approx(532, abs=1)
    assert geometric_mean(list(best_peers("backward").values())) == pytest.approx(512, abs=1)
    assert geometric_mean(list(best.values())) == pytest.approx(517, abs=1)
    results = Results(tmp_path / "x.json")
    shape = Shape().key
    for engine, rate in (("fm3", 1412.0), ("flex", 353.0)):
        results.keep({"cell": "full", "tokens": 32768, "engine": engine, **shape, "forward": rate})
    line = "fm3, forward, 1 cells: 2.000 x the best peer's; 4.000 x flex's"
    assert summary(results, ["fm3", "flex"], ["forward"], shape)[0] == line


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_other_lengths_are_scaled(name):
    for tokens in (128, 4096, 8192):
        mask = benchmark_mask(name, tokens, 4)
        assert (mask.num_rows, mask.num_keys) == (tokens, tokens)
        assert 0 < mask.density <= 1
    cell = Cell.draw(name, 128, SHAPE, "cpu")
    assert cell.pairs == int(cell.mask.to_dense().sum()) * (2 // cell.mask.heads) * (2 // cell.mask.batch)


def test_ascending_order_is_by_row_block():
    records = torch.tensor([[2, 0, 1, 9], [0, 0, 0, 5], [1, 0, 0, 5]])
    assert ascending(records)[:, 0].tolist() == [0, 1, 2]


def test_the_performance_page_is_drawn_from_the_results():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page.endswith("## Tables\n\n" + tables() + "\n")
