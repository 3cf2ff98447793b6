"""Simulator for the real scheduler, in virtual time; a seed determines the whole run.

`Simulator` has virtual time, events and waiting threads. A `Process` can be busy, stop and crash.
`Network` carries messages between processes. `SimulatedDevice` is a simulated device: a real device
loop whose programs take virtual time. `SimulatedClient` has real deployments. All other code is the
code that runs on Ray and in process; the simulator repeats no rule of the scheduler.
`tests/simulation` adds faults, and a client that follows the real liveness state machine. Not
simulated, because Ray or the kernel provides it: sockets, heartbeats, shared memory and actors.

Alternatives measured: an event takes as long as in SimPy 4, 1.2 to 1.9 microseconds in two runs
each. SimPy's processes are generators, so each rule of the scheduler would exist a second time.
"""
