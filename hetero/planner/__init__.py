"""The planner: devices for the nodes of a graph, with a proof of how good the choice is.

`plan` takes a `Problem` (numbers only) and gives a `Solution`. All of it is pure functions of their
arguments; the steps are described at the head of each module.
"""

from hetero.planner.bounds import Bound
from hetero.planner.evaluate import Cut, cut, evaluate
from hetero.planner.mixing import Part
from hetero.planner.problem import Evaluation, Problem, is_feasible, make_problem
from hetero.planner.search import Objective, plan
from hetero.planner.solution import Candidate, Solution

__all__ = [
    "Bound",
    "Candidate",
    "Cut",
    "Evaluation",
    "Objective",
    "Part",
    "Problem",
    "Solution",
    "cut",
    "evaluate",
    "is_feasible",
    "make_problem",
    "plan",
]
