"""The kernel benchmark on a CPU: what it times, refuses, keeps, and goes on from."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fm3_planner import calibrate

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
pytest_plugins = ["hopper_double"]

import bench_kernel  # noqa: E402 - benchmarks are no package
from kernel.cell import Cell, Shape  # noqa: E402
from kernel.clock import Clock  # noqa: E402
from kernel.engines import Engine, external, torch_engine  # noqa: E402
from kernel.flex_masks import usual_mask_mod  # noqa: E402
from kernel.masks import MASKS, benchmark_mask  # noqa: E402
from kernel.product import LACKS, RUN_TIME_ABLATIONS, ascending  # noqa: E402
from kernel.results import Results  # noqa: E402
from kernel.verify import Pair, Truth  # noqa: E402
from kernel_variants.edits import ANY_ORDER, VARIANTS, Edit, Variant  # noqa: E402

SHAPE = Shape(256, 2, 1, 16, torch.float32)
HALF = ["--dtype", "bfloat16", "--dim", "64", "--lengths", "256"]
GRADIENTS = ("backward", "both")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Return a function that runs the benchmark tinily with more engines, and returns what it kept."""

    def run(*options, **engines):
        for name, passes in engines.items():
            monkeypatch.setitem(bench_kernel.ENGINES, name, Engine(passes=passes))
        bench_kernel.main(["--tiny", "--json", str(tmp_path / "x.json"), *options])
        return json.loads((tmp_path / "x.json").read_text())

    return run


def tiled(cell):
    return torch_engine("tiled")(cell)


def only(content, engine):
    (found,) = (result for result in content["results"] if result["engine"] == engine)
    return found


def test_every_mask_is_timed_once_and_kept(bench, capsys):
    content = bench()
    assert {(r["cell"], r["tokens"]) for r in content["results"]} == {
        (m, n) for m in MASKS for n in (128, 256)
    }
    assert all(r["tflops"][which] > 0 for r in content["results"] for which in ("forward", *GRADIENTS))
    assert [run["gpu"] for run in content["runs"]] == ["none"]
    printed = capsys.readouterr().out
    assert printed.count("full  ") == 2
    assert "| full | 256 | 1.000 |" in printed
    assert printed.rstrip().splitlines()[-1].startswith("preparing a mask")
    assert bench() == content
    assert "full  " not in capsys.readouterr().out


def test_a_run_is_cut_by_minutes_and_goes_on(bench, capsys):
    first = bench("--masks", "full", "--minutes", "5")
    cut = bench("--minutes", "0")
    assert cut == first
    assert "0 minutes are over" in capsys.readouterr().out
    assert len(bench("--masks", "full", "causal")["results"]) == 4


def test_passes_of_one_cell_are_merged_over_runs(bench):
    one = ["--masks", "full", "--lengths", "128"]
    forward = only(bench(*one, "--passes", "forward"), "tiled")
    assert (list(forward["tflops"]), forward["run"]) == (["forward"], {"forward": 0})
    merged = only(bench(*one), "tiled")
    assert merged["run"] == {"forward": 0, "backward": 1, "both": 1}
    assert merged["tflops"]["forward"] == forward["tflops"]["forward"]
    again = only(bench(*one, "--again", "--passes", "forward"), "tiled")
    assert again["run"] == {"forward": 2, "backward": 1, "both": 1}


def test_engines_that_came_later_take_turns_with_the_first(bench):
    one = ["--masks", "full", "--lengths", "128"]
    bench(*one, "--engines", "a", a=tiled)
    apart = bench(*one, "--engines", "a", "b", b=tiled)
    assert [only(apart, name)["run"]["both"] for name in "ab"] == [0, 1]
    together = bench(*one, "--engines", "a", "b", "c", "--together", c=tiled)
    assert [only(together, name)["run"]["both"] for name in "abc"] == [2, 2, 2]
    assert bench(*one, "--engines", "a", "b", "c", "--together") == together


def wrong_in(which):
    """Return the tiled engine with one result that is wrong in one place."""

    def passes(cell):
        right = tiled(cell)

        def forward():
            out, lse = right.forward()
            out[0, 0, 0, 0] += 1.0 if which == "out" else 0.0
            lse[0, 0, 0] += 1.0 if which == "lse" else 0.0
            return out, lse

        def spoiled(call, name):
            def run():
                dq, dk, dv = call()
                dq[:, :, 0] += 1.0 if which == f"dq {name}" else 0.0
                dv[0, 3, 0, 0] = torch.nan if which == f"dv {name}" else dv[0, 3, 0, 0]
                return [dq, dk, dv]

            return run

        gradients = {name: spoiled(getattr(right, name), name) for name in GRADIENTS}
        return replace(right, forward=forward, **gradients)

    return passes


@pytest.mark.parametrize("which", ["out", "lse", "dq both", "dq backward", "dv both", "dv backward"])
def test_a_wrong_engine_gets_no_time(which, bench, capsys):
    content = bench(
        "--masks", "causal", "--lengths", "128", "--engines", "tiled", "wrong", wrong=wrong_in(which)
    )
    wrong = only(content, "wrong")
    assert "of what is allowed" in wrong["wrong"]
    assert "tflops" not in wrong
    assert only(content, "tiled")["tflops"].keys() == {"forward", *GRADIENTS}
    assert "wrong: WRONG" in capsys.readouterr().out
    assert bench("--masks", "causal", "--lengths", "128", "--engines", "wrong") == content
    mended = bench("--masks", "causal", "--lengths", "128", "--engines", "wrong", "--again", wrong=tiled)
    assert "wrong" not in only(mended, "wrong")


def test_what_is_right_without_is_wrong_with_what_the_mask_hides(bench):
    def blind(cell):
        return tiled(replace(cell, mask=benchmark_mask("full", cell.tokens, 2)))

    content = bench("--masks", "full", "causal", "--lengths", "128", "--engines", "blind", blind=blind)
    assert ["wrong" in result for result in content["results"]] == [False, True]


def test_an_engine_that_raises_gets_no_time(bench):
    def failing(cell):
        raise RuntimeError("no room for that")

    content = bench("--masks", "full", "--lengths", "128", "--engines", "bad", "tiled", bad=failing)
    assert "no room for that" in only(content, "bad")["wrong"]
    assert only(content, "tiled")["tflops"]["both"] > 0


def test_an_engine_without_backward_has_a_reason_in_its_place(bench, capsys):
    def forward_alone(cell):
        return replace(tiled(cell), backward=None, both=None, untimed={"both": "not written"})

    options = ["--masks", "full", "--lengths", "128", "--engines", "half"]
    content = bench(*options, half=forward_alone)
    assert only(content, "half")["missing"] == {"backward": "it has no such pass", "both": "not written"}
    assert list(only(content, "half")["tflops"]) == ["forward"]
    capsys.readouterr()
    assert bench(*options) == content
    assert "full  " not in capsys.readouterr().out


def test_bits_that_must_repeat_are_compared(bench):
    turns = iter(range(1000))

    def wavering(cell):
        right = tiled(cell)

        def backward():
            return [x * (1 + next(turns) * 1e-7) for x in right.backward()]

        return replace(right, repeats_bits=True, backward=backward)

    def steady(cell):
        return replace(tiled(cell), repeats_bits=True)

    content = bench(*("--masks", "full", "--lengths", "128", "--engines", "a", "b"), a=wavering, b=steady)
    assert "different bits" in only(content, "a")["wrong"]
    assert only(content, "b")["tflops"]["backward"] > 0


def test_what_an_engine_cannot_serve_is_said_and_asked_again(bench, capsys):
    content = bench("--masks", "full", "causal", "--engines", "fm3", "tiled", "cudnn")
    printed = capsys.readouterr().out
    assert printed.count("fm3: not here, engine 'hopper': ") == 1
    assert {result["engine"] for result in content["results"]} == {"tiled"}
    assert Engine(passes=tiled, most_tokens=64).why_not("full", 128) is not None
    assert Engine(passes=tiled, masks=("full",)).why_not("full", 128) is None
    assert Engine(passes=tiled, masks=("full",)).why_not("causal", 128) == "it has only full"


def test_the_product_is_timed_verified_and_counted(bench, hopper_double):
    content = bench(*HALF, "--engines", "fm3")
    product = [result for result in content["results"] if result["engine"] == "fm3"]
    assert [result.get("wrong") for result in product] == [None] * 12
    assert all(set(result["prepare_seconds"]) == {"forward", "backward"} for result in product)
    assert {(c["direction"], c["block_rows"], c["block_keys"]) for c in content["cells"]} == {
        ("forward", 128, 128),
        ("backward", 64, 128),
    }
    full = next(c for c in content["cells"] if (c["cell"], c["direction"]) == ("full", "forward"))
    assert (full["full_blocks"], full["partial_blocks"], full["row_blocks"]) == (2 * 4, 0, 2 * 2)


def test_planners_weights_are_fitted_to_what_was_counted(bench, hopper_double, tmp_path):
    bench(*HALF, "--lengths", "128", "256", "--engines", "fm3")
    cells = calibrate.read_cells(tmp_path / "x.json")
    assert sorted({(cell.direction, cell.block_rows) for cell in cells}) == [
        ("backward", 64),
        ("forward", 128),
    ]
    fitted = calibrate.fit_cost_weights(cells, source="a test")
    assert fitted.backward is not None
    assert fitted.forward.cells == fitted.backward.cells == 24


def test_what_cannot_be_prepared_under_the_clock_costs_no_time_of_passes(bench):
    def unpreparable(cell):
        def prepare():
            raise RuntimeError("it cannot be captured\nhere")

        return replace(tiled(cell), prepare={"forward": prepare})

    content = bench("--masks", "full", "--lengths", "128", "--engines", "a", a=unpreparable)
    assert only(content, "a")["missing"] == {"prepare forward": "RuntimeError: it cannot be captured"}
    assert only(content, "a")["tflops"]["both"] > 0


def test_short_calls_are_timed_many_at_a_time():
    calls = []
    clock = Clock(rounds=1, budget_seconds=10.0, pause_seconds=0.0, device="cpu")
    assert clock.seconds({"": lambda: calls.append(1)})[""] < 1e-3
    assert len(calls) == 2 + 200


def test_the_budget_is_of_all_turns_together(monkeypatch):
    asked = []
    monkeypatch.setattr(Clock, "_span", lambda clock, call, times: asked.append(times) or 0.01 * times)
    clock = Clock(rounds=3, budget_seconds=0.32, pause_seconds=0.0, device="cpu")
    assert clock.seconds({"": print})[""] == pytest.approx(0.01)
    assert asked == [1, 1, 10] * 3


def test_ablations_are_timed_beside_the_kernel(bench, hopper_double, capsys, tmp_path):
    options = ["--masks", "causal", "--passes", "forward", "--engines", "fm3", "--ablations"]
    content = bench(*HALF, *options, "--variants", str(tmp_path))
    assert {result["engine"] for result in content["results"]} == {"fm3", *RUN_TIME_ABLATIONS}
    printed = capsys.readouterr().out
    assert all(f"not built: {name}: " in printed for name in VARIANTS)
    assert (
        "| heaviest row blocks first | row blocks in the order of the sequence (`ascending`) | 256 "
        in printed
    )
    assert "(`static_schedule`) | not measured |" in printed
    assert set(LACKS) == {*RUN_TIME_ABLATIONS, *VARIANTS}


@pytest.mark.parametrize("variant", [*VARIANTS.values(), ANY_ORDER], ids=lambda variant: variant.name)
def test_a_variant_changes_the_sources_that_are_there(variant):
    changed = variant.sources()
    assert changed.keys() == {edit.file for edit in variant.edits}
    assert all(text != (ROOT / "csrc" / file).read_text() for file, text in changed.items())
    assert variant.predicted


def test_a_variant_of_sources_that_have_changed_is_refused():
    edit = Edit("attention/scheduler.cuh", "what nobody wrote", "")
    variant = Variant(name="stale", lacks="", instead="", predicted="", edits=(edit,))
    with pytest.raises(ValueError, match=r"variant stale: attention/scheduler\.cuh .* 0 times"):
        variant.sources()


@pytest.mark.parametrize("name", MASKS)
def test_the_mask_that_flex_attention_gets_is_the_mask(name):
    tokens = 512
    found = usual_mask_mod(name, tokens, "cpu")
    if found is None:
        assert name not in ("causal", "sliding_window", "prefix_lm_causal", "document", "causal_document")
        return
    rows, keys = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    seen = found(torch.tensor(0), torch.tensor(0), rows, keys)
    assert np.array_equal(seen.numpy(), benchmark_mask(name, tokens, 1).to_dense()[0, 0])


def test_an_external_engine_is_a_function_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "other_attention.py").write_text("def passes(cell):\n    return 'it is an example'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert external("other_attention:passes").passes(None) == "it is an example"
    with pytest.raises(ValueError, match="MODULE:FUNCTION, got 'other_attention'"):
        external("other_attention")
    with pytest.raises(ValueError, match="no function 'nothing'"):
        external("other_attention:nothing")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    results = Results.read(tmp_path / "x.json")
    results.begin({"gpu": "none"})
    key = {"cell": "full", "tokens": 8, "engine": "a", **SHAPE.key}
    results.keep(key, tflops={"forward": 1.0}, cells=[{"direction": "forward", "seconds": 2.0}])
    results.keep(key, tflops={"backward": 3.0}, cells=[{"direction": "backward", "seconds": 4.0}])
    again = Results.read(tmp_path / "x.json")
    assert [cell["seconds"] for cell in again.content["cells"]] == [2.0, 4.0]
    assert again.lacks(key, ["forward", "both"]) == ["both"]
    before = (tmp_path / "x.json").read_text()
    with pytest.raises(TypeError):
        results.keep({**key, "engine": "b"}, tflops={"forward": object()})
    assert (tmp_path / "x.json").read_text() == before
    results = Results.read(tmp_path / "x.json")
    results.keep(key, wrong="it is not right")
    assert results.content["cells"] == []
    assert results.lacks(key, ["forward"]) == []


def test_the_clock_takes_turns_and_medians():
    order = []
    found = Clock(rounds=3, budget_seconds=0.0, pause_seconds=0.0, device="cpu").seconds(
        {name: (lambda name=name: order.append(name)) for name in "ab"}
    )
    assert "".join(order) == ("a" * 2 + "b" * 2) * 3
    assert all(seconds > 0 for seconds in found.values())


def test_errors_are_multiples_of_what_is_allowed():
    exact = torch.tensor([1.0, -torch.inf])
    pair = Pair(exact, torch.tensor([1.25, -torch.inf]))
    assert pair.largest(torch.tensor([1.5, -torch.inf])) == pytest.approx(1.0, rel=1e-5)
    assert pair.largest(torch.tensor([1.0, 0.0])) == torch.inf
    assert pair.largest(torch.tensor([torch.nan, -torch.inf])) == torch.inf
    assert pair.largest(exact) == 0


@pytest.mark.parametrize("name", MASKS)
def test_plain_arithmetic_is_within_what_is_allowed(name):
    cell = Cell.draw(name, 256, Shape(512, 4, 2, 64, torch.bfloat16), "cpu")
    truth, made = Truth(cell), tiled(cell)
    assert truth.forward_error(*made.forward()) <= 1
    assert truth.gradient_error(made.both()) <= 1


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_other_lengths_are_scaled(name):
    for tokens in (128, 4096, 8192):
        mask = benchmark_mask(name, tokens, 4)
        assert (mask.num_rows, mask.num_keys) == (tokens, tokens)
        assert 0 < mask.density <= 1
    cell = Cell.draw(name, 128, SHAPE, "cpu")
    assert cell.pairs == int(cell.mask.to_dense().sum()) * (2 // cell.mask.heads) * (2 // cell.mask.batch)
    assert cell.density == pytest.approx(cell.mask.density)


def test_ascending_order_is_by_row_block():
    records = torch.tensor([[2, 0, 1, 9], [0, 0, 0, 5], [1, 0, 0, 5]])
    assert ascending(records)[:, 0].tolist() == [0, 1, 2]
