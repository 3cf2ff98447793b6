"""What a cluster would do: the real scheduler in virtual time, with the times of a plan.

`fleet` says which devices, links and clients there are; `arrivals` when requests come; `run` has
a world of `hetero.scheduler.universe` serve them; `advise` tries what could be added and lost.
"""
