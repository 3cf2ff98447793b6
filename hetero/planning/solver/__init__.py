"""The planner: devices for the nodes of a graph, with a proof of how good the choice is.

`plan` takes a `Problem` (numbers only) and gives a `Solution`. All of it is pure functions of their
arguments; the steps are described at the head of each module.
"""

from hetero.planning.solver.bounds import Bound
from hetero.planning.solver.choice import Candidate, Objective, Solution, is_landmark
from hetero.planning.solver.evaluate import evaluate
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Evaluation, Problem, is_feasible, make_problem
from hetero.planning.solver.search import plan

__all__ = [
    "Bound",
    "Candidate",
    "Evaluation",
    "Objective",
    "Part",
    "Problem",
    "Solution",
    "evaluate",
    "is_feasible",
    "is_landmark",
    "make_problem",
    "plan",
]
