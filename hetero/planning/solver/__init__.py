"""Solver: assigns devices to the nodes of a graph, with a proven bound on the optimality gap.

`search.search_plan` takes a `Problem` (numbers only) and returns a `Solution`. All functions are
pure; the head of each module describes its step.

Alternatives measured, with 5 s for each of the published instances; bottleneck over the best known
one, of this solver and of OR-Tools CP-SAT 9.15 with two threads: BERT-24 by layers 1.000 and 1.000,
ResNet-50 by layers 1.009 and 1.071, ResNet-50 by operators 1.000 and 1.861, BERT-12 by operators
1.046 and 11.43. The bounds of CP-SAT were no better, and it takes 246 MB on disk. HiGHS 1.15 needed
600 s for the plan of BERT-12 that annealing found in 20 s. Graph partitioners such as METIS and
KaHyPar minimise the cut; they support neither acyclic parts nor devices of unequal speed.
"""
