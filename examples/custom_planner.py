"""A planner of one's own beside some that ship: python examples/custom_planner.py."""

from fm3_core import patterns
from fm3_planner import PlanProblem, check_plan, plan, planners


class Neighbourly:
    """Heaviest chunk first, as lpt, but to a light rank whose node has most chunks linked by need."""

    def assign(self, problem: PlanProblem) -> list[list[int]]:
        """Return the chunks of each rank: integers decide, and of equal ranks the first is taken."""
        weights, linked = problem.weights.tolist(), problem.needs | problem.needs.T
        per_rank, ranks_with_more = problem.chunks_per_rank
        slack = sum(weights) // (8 * problem.num_ranks)  # an eighth of an even load
        chunks_by_rank: list[list[int]] = [[] for _ in range(problem.num_ranks)]
        loads = [0] * problem.num_ranks
        on_node: list[list[int]] = [[] for _ in range(problem.cluster.num_nodes)]
        for chunk in sorted(range(problem.num_chunks), key=lambda chunk: (-weights[chunk], chunk)):
            room = [r for r, own in enumerate(chunks_by_rank) if len(own) < per_rank + (r < ranks_with_more)]
            light = [rank for rank in room if loads[rank] <= min(loads[r] for r in room) + slack]
            known = {r: int(linked[chunk, on_node[problem.cluster.node_of(r)]].sum()) for r in light}
            rank = min(light, key=lambda rank: (-known[rank], loads[rank], rank))
            chunks_by_rank[rank].append(chunk)
            on_node[problem.cluster.node_of(rank)].append(chunk)
            loads[rank] += weights[chunk]
        return chunks_by_rank


planners.register("neighbourly", Neighbourly)  # from now on a name as any other

if __name__ == "__main__":
    mask = patterns.causal_document([5200, 900, 3100, 700, 1800, 400, 2600, 1684])
    problem = PlanProblem.from_mask(mask, chunk_size=256, num_ranks=8, ranks_per_node=4)
    for name in ("contiguous", "zigzag", "lpt", "neighbourly", "hcc_ipo"):
        result = plan(problem, planner=name)
        check_plan(problem, result)
        cost, gap = result.cost, result.gaps.compute
        print(f"{name:<12} load {cost.compute:>6} {gap:7.2%}  between nodes {cost.node_traffic >> 10:>6} KiB")
