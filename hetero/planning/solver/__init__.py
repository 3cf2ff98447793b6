"""The planner: devices for the nodes of a graph, with a proof of how good the choice is.

`search.plan` takes a `Problem` (numbers only) and gives a `Solution`. All of it is pure functions
of their arguments; the steps are described at the head of each module.
"""
