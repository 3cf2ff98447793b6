"""Capacity planning: the real scheduler in virtual time, with the times of a plan.

`fleet` describes the devices, links and clients; `arrivals` the load. `virtual_run` serves the
requests with `hetero.scheduler.simulation`. `simulation` also tries fleets with one part more or
less.
"""
