"""A simulated world for the real scheduler: one seed, virtual time, one history.

`World` has the time, the events and the threads that wait; a `Process` is what may crash, stop and
be busy; `Network` carries messages between them; `PlayedDevice` starts real device loops whose
programs take virtual time; `PlayedClient` has real deployments. Everything else is what runs on Ray
and in process: no rule is written here again. `tests/universe` adds faults, and a client that does
what the real liveness machine orders. Left out, because it is Ray's or the kernel's: sockets,
heartbeats, shared memory, actors.
"""
