"""Peers' figures, tables, targets and the performance page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import bench_kernel  # noqa: E402 - benchmarks are no package
from kernel.chart import ratio_chart  # noqa: E402
from kernel.page import PAGE, PICTURE, page, picture  # noqa: E402
from kernel.peers import (  # noqa: E402
    DIM_64,
    GROUPED,
    PASSES,
    USUAL,
    best_rates,
    peer_figures,
    peer_rates,
    scaled,
)
from kernel.results import Results, geometric_mean, ratios  # noqa: E402
from kernel.table import ablations_table, engines_table  # noqa: E402
from kernel.targets import TARGETS, Target, peer_means, standings, summary, verdict  # noqa: E402


@pytest.fixture
def results(tmp_path):
    """Return a function that makes a file of results of (engine, cell, tokens, TFLOP/s by pass)."""

    def make(*rows, shape=USUAL, **facts):
        made = Results(tmp_path / "x.json")
        for engine, cell, tokens, tflops in rows:
            made.begin({"gpu": "none", "torch": "0", "date": "2000-01-01"})
            made.keep({"cell": cell, "tokens": tokens, "engine": engine, **shape}, tflops=tflops, **facts)
        return made

    return make


def row(title_start, found):
    (line,) = (standing for standing in found if standing.title.startswith(title_start))
    return line


def test_geometric_means():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None
    assert ratios({("a", 1): 6.0, ("b", 1): 1.0}, {("a", 1): 3.0}) == {("a", 1): 2.0}


@pytest.mark.parametrize(
    ("engine", "means"),
    [
        ("FlashMask V3", (491, 498, 495)),
        ("FA4", (515, 470, 482)),
        ("FFA", (491, 436, 449)),
        ("FlexAttention", (374, 342, 351)),
        (None, (532, 512, 517)),
    ],
)
def test_published_figures_have_the_published_means(engine, means):
    found = [
        geometric_mean(
            list((peer_rates(USUAL, which, engine) if engine else best_rates(USUAL, which)).values())
        )
        for which in PASSES
    ]
    assert found == pytest.approx(means, abs=1)


def test_published_tables_are_whole():
    assert len(peer_figures(USUAL)) == 36
    assert {cell for cell, engines in peer_figures(USUAL).items() if "cuDNN" in engines} == {
        (mask, n) for mask in ("full", "causal") for n in (8192, 32768, 131072)
    }
    assert peer_figures(GROUPED)["causal", 32768]["FA3"] == (652, 599)
    assert peer_figures(DIM_64)["random_eviction", 32768] == {"FlashMask V3": (231, 352)}
    assert peer_figures({**USUAL, "dim": 96}) == {}


def test_peers_are_scaled_by_flexattention_of_this_run(results):
    # FlexAttention here is half of its published 489 on full 32K: so is every peer; causal keeps its figure.
    here = results(("flex", "full", 32768, {"forward": 489 / 2}))
    found = scaled(best_rates(USUAL, "forward"), USUAL, "forward", here.rates("flex", "forward", USUAL))
    assert found["full", 32768] == pytest.approx(706 / 2)
    assert found["causal", 32768] == 657


def test_a_target_is_met_within_noise_or_not():
    assert verdict(1.2, 1.0, 1.1) == "REACHED"
    assert verdict(1.0, 1.0, 1.1) == "met"
    assert verdict(1.2, 1.0, None) == "met"
    assert verdict(0.98, 1.0, 1.1) == "within noise of must"
    assert verdict(0.96, 1.0, 1.1) == "NOT MET"


def test_targets_take_the_mean_or_the_least_of_their_cells(results):
    made = results(
        ("fm3", "full", 32768, {"forward": 706 * 2.0, "backward": 629 * 0.5}),
        ("fm3", "causal", 8192, {"forward": 629 * 0.5}),
        ("fm3", "causal", 4096, {"forward": 1.0}),
        ("cudnn", "full", 32768, {"forward": 706.0}),
    )
    found = standings(made)
    mean = row("all cells, forward", found)
    assert (mean.value, mean.worth) == ("1.000", "met")
    assert mean.kind == "mean of 2, least 0.50 at causal 8K; 0 scaled by FlexAttention here"
    assert (row("all cells, backward", found).value, row("all cells, both", found).value) == (
        "0.500",
        "not measured",
    )
    assert row("full and causal, forward", found).value == "2.000"
    assert row("full and causal, forward", found).kind == "least of 1 at full 32K; 1 timed in runs apart"
    assert row("full 32K, backward", found).worth == "NOT MET"
    assert row("every cell, forward", found).value == "not measured"


def test_scaled_peers_move_the_ratio_and_are_counted(results):
    made = results(("fm3", "full", 32768, {"forward": 353.0}), ("flex", "full", 32768, {"forward": 489 / 2}))
    found = row("all cells, forward", standings(made))
    assert (found.value, found.worth) == ("1.000", "met")
    assert found.kind.endswith("1 scaled by FlexAttention here")
    assert "fm3 / FA3, published: forward 1.000 over 1 cells, 1 of them scaled" in peer_means(made, USUAL)


def test_the_deterministic_order_is_measured_against_any_other(results):
    made = results(
        ("fm3", "full", 8192, {"backward": 85.0}), ("any_order", "full", 8192, {"backward": 100.0})
    )
    assert (row("deterministic", standings(made)).value, row("deterministic", standings(made)).worth) == (
        "0.850",
        "met",
    )


def test_head_dim_64_has_its_own_peers(results):
    made = results(("fm3", "full", 32768, {"forward": 532.0}), shape=DIM_64)
    assert row("head dim 64, forward", standings(made)).value == "1.000"
    assert row("all cells, forward", standings(made)).value == "not measured"


@pytest.mark.parametrize(("micros", "worth"), [(15, "REACHED"), (40, "met"), (70, "NOT MET")])
def test_preparing_a_mask_is_a_time(results, micros, worth):
    facts = {"prepare_seconds": {"forward": micros * 0.6e-6, "backward": micros * 0.4e-6}, "mask_heads": 1}
    made = results(("fm3", "causal", 131072, {"forward": 1.0}), **facts)
    assert (standings(made)[-1].value, standings(made)[-1].worth) == (f"{micros:.1f}", worth)


def test_a_summary_has_a_line_for_each_peer_and_target(results):
    lines = summary(results(), USUAL)
    assert len(lines) == 6 + 1 + sum(len(target.passes) for target in TARGETS) + 1
    assert all("not measured" in line for line in lines if line)


def test_a_target_against_nobody_of_that_name_is_not_measured(results):
    made = results(("fm3", "full", 8192, {"forward": 1.0}))
    assert Target(what="x", against="nobody", must=1.0).standing(made, "forward").worth == ""


def test_the_table_has_engines_peers_and_ratios(results):
    made = results(
        ("fm3", "causal", 8192, {"forward": 1258.0, "backward": 5.125}),
        ("fm3", "full", 8192, {"forward": 685.0}),
        ("flex", "full", 8192, {"forward": 483.0}),
        density=0.5,
    )
    lines = engines_table(made, ["fm3", "flex"], USUAL)
    assert lines[0] == "| mask | tokens | density | fm3 | flex | best peer | fm3 / best peer |"
    assert lines[2] == "| full | 8K | 0.500 | 685 / - | 483 / - | 685 / 609 | 1.00 / - |"
    assert lines[3] == "| causal | 8K | 0.500 | 1258 / 5.12 | - | 629 / 561* | 2.00 / 0.01 |"


def test_ablations_are_ratios_to_the_kernel(results):
    made = results(
        *(("fm3", mask, 8192, {"forward": 100.0}) for mask in ("full", "causal")),
        ("without", "full", 8192, {"forward": 50.0}),
        ("without", "causal", 8192, {"forward": 200.0}),
    )
    lines = ablations_table(made, {"without": ("an idea", "another"), "unbuilt": ("b", "c")}, USUAL)
    assert lines[2] == "| an idea | another (`without`) | 8K 1.000 over 2 | full 8K 0.50, causal 8K 2.00 |"
    assert lines[3] == "| b | c (`unbuilt`) | not measured |  |"


def test_a_file_is_printed_without_timing(results, capsys):
    path = results(("fm3", "full", 8192, {"forward": 685.0}), density=1.0).path
    before = path.read_text()
    bench_kernel.main(["--print", "--json", str(path)])
    assert "| full | 8K | 1.000 | 685 | 685* | 1.00 |" in capsys.readouterr().out
    assert path.read_text() == before


def test_files_are_joined_with_their_runs(results, tmp_path):
    first = results(("a", "full", 8, {"forward": 1.0}))
    second = Results(tmp_path / "y.json")
    second.begin({"gpu": "another"})
    second.keep({"cell": "full", "tokens": 8, "engine": "b", **USUAL}, tflops={"forward": 2.0})
    joined = Results.joined([first.path, second.path])
    assert [run["gpu"] for run in joined.runs_of("b", "forward", USUAL)] == ["another"]
    assert joined.rates("a", "forward", USUAL) == {("full", 8): 1.0}


def test_a_bar_is_as_high_as_its_ratio():
    drawn = ratio_chart({("full", 8192): 0.5, ("causal", 8192): 1.0}, "x")
    heights = [float(part.split('"')[0]) for part in drawn.split('height="')[1:]]
    low, high = (height for height in heights if height not in (11.0,) and height < 200)
    assert high == pytest.approx(2 * low, abs=0.2)


def test_the_performance_page_is_drawn_from_the_results():
    assert PAGE.read_text(encoding="utf-8") == page()
    assert PICTURE.read_text(encoding="utf-8") == picture()
