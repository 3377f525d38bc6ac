"""planbench is frozen: its instances are what the best values are known of, and plans have those values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fm3_core import Partition, PlanError, UnknownNameError
from fm3_planner import Instance, lower_bounds, plan_cost, read_instances
from fm3_planner.exact.search import with_slack

FOLDER = Path(__file__).parents[2] / "benchmarks" / "planbench"
PLANBENCH = {instance.name: instance for instance in read_instances(FOLDER / "instances.json")}
HELD_OUT = {instance.name: instance for instance in read_instances(FOLDER / "held_out.json")}
INSTANCES = PLANBENCH | HELD_OUT
BEST = {
    name: best
    for file in ("best.json", "held_out_best.json")
    for name, best in json.loads((FOLDER / file).read_text(encoding="utf-8"))["instances"].items()
}
SMALL = [name for name, instance in INSTANCES.items() if len(BEST[name]["compute"]["owner"]) <= 64]


@pytest.fixture(scope="module")
def problems():
    return {name: INSTANCES[name].problem() for name in SMALL}


def _cost(problem, owner):
    chunks = tuple(
        tuple(chunk for chunk, of in enumerate(owner) if of == rank) for rank in range(problem.num_ranks)
    )
    return plan_cost(problem, Partition(problem.num_tokens, problem.chunk_size, chunks))


def _traffic(name):
    return BEST[name]["node_traffic"]


def test_there_are_instances_of_every_kind_and_size():
    groups = {instance.group for instance in PLANBENCH.values()}
    assert len(PLANBENCH) >= 60
    assert groups >= {
        "causal",
        "causal_blockwise",
        "causal_document",
        "document",
        "global_sliding_window",
        "hard",
        "prefix_lm_document",
        "random_eviction",
        "share_question",
        "sliding_window",
        "window_in_documents",
    }
    assert {instance.num_ranks for instance in PLANBENCH.values()} == {2, 3, 4, 6, 8, 16, 32, 64, 256}


def test_the_held_out_instances_are_others():
    assert len(HELD_OUT) >= 40
    assert not set(HELD_OUT) & set(PLANBENCH)
    masks = {json.dumps(instance.masks) for instance in PLANBENCH.values() if instance.masks}
    assert not masks & {json.dumps(instance.masks) for instance in HELD_OUT.values()}


def test_best_values_are_known_of_every_instance_and_of_no_other():
    assert sorted(BEST) == sorted(INSTANCES)


@pytest.mark.parametrize("name", SMALL)
def test_the_best_values_are_those_of_plans_of_the_frozen_problem(name, problems):
    problem, compute = problems[name], BEST[name]["compute"]
    assert _cost(problem, compute["owner"]).compute == compute["value"]
    assert lower_bounds(problem).compute.value <= compute["bound"] <= compute["value"]
    assert compute["proved"] == (compute["bound"] == compute["value"])
    costs = [_cost(problem, entry["owner"]) for entry in _traffic(name).values()]
    assert [cost.node_traffic for cost in costs] == [entry["value"] for entry in _traffic(name).values()]
    allowed = [with_slack(compute["value"], float(epsilon)) for epsilon in _traffic(name)]
    assert [entry["allowed"] for entry in _traffic(name).values()] == allowed
    assert all(cost.compute <= most for cost, most in zip(costs, allowed, strict=True))


def test_most_small_instances_are_proved():
    proved = [BEST[name]["compute"]["proved"] for name in SMALL if name in PLANBENCH]
    assert sum(proved) >= 0.8 * len(proved)


def test_an_instance_of_plain_weights_has_no_mask():
    instance = INSTANCES["hard-zipf"]
    with pytest.raises(PlanError, match="instance hard-zipf has plain weights and no mask"):
        instance.mask()


def test_an_unknown_pattern_lists_the_known_ones():
    instance = Instance(
        name="x",
        group="x",
        source="x",
        num_ranks=2,
        ranks_per_node=2,
        chunk_size=1,
        masks=({"pattern": "spiral", "arguments": {}},),
    )
    with pytest.raises(UnknownNameError, match="unknown pattern 'spiral'; known: causal, "):
        instance.problem()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda content: content | {"version": 2},
            "must be fm3.instances version 1, got 'fm3.instances' version 2",
        ),
        (
            lambda content: content | {"instances": content["instances"][:1] * 2},
            r"is there more than once \(1 such names\)",
        ),
        (lambda content: [], "must be fm3.instances version 1, got 'list' version None"),
        (lambda content: content | {"cost": 3}, "argument after \\*\\* must be a mapping"),
        (lambda content: content | {"cost": {"speed": 3}}, "unexpected keyword argument 'speed'"),
        (
            lambda content: content | {"instances": [content["instances"][0], {"name": "x"}]},
            r"instances\[1\]: .* missing 5 required keyword-only arguments",
        ),
        (lambda content: content | {"instances": [3]}, r"instances\[0\]: "),
        (lambda content: {key: content[key] for key in ("format", "version")}, "field 'cost' is missing"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, change, message):
    content = json.loads((FOLDER / "instances.json").read_text(encoding="utf-8"))
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(change(content)), encoding="utf-8")
    with pytest.raises(PlanError, match=message):
        read_instances(path)


@pytest.mark.parametrize("text", ["", "{", "[1", b"\xff\xfe"])
def test_a_file_that_is_no_json_is_refused(tmp_path, text):
    path = tmp_path / "instances.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError, match=r"instances\.json is no JSON"):
        read_instances(path)


def test_a_pattern_with_other_arguments_is_refused_by_its_name():
    fields = {"name": "x", "group": "x", "source": "x", "num_ranks": 1, "ranks_per_node": 1, "chunk_size": 1}
    instance = Instance(**fields, masks=({"pattern": "causal", "arguments": {"rows": 4}},))
    with pytest.raises(PlanError, match=r"pattern 'causal': .* unexpected keyword argument 'rows'"):
        instance.problem()
