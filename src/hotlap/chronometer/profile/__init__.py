"""The profile: a short window of torch's profiler in the measured process, and what it says.

    measured process (each rank)                    launcher
    ----------------------------------------        -------------------------------------------
    window.py    starts and stops the profiler      collect.py   reads what the ranks left
    sites.py     operators -> the user's lines      trace.py     chrome trace -> events
    compiler.py  graph breaks and recompiles        operators.py events -> nested operators
    memory.py    weights, gradients, states         kernels.py   kernels and what launched them
    files.py     what a process leaves behind       classes.py … one question each, pure functions
                                                    analyse.py   all of them -> RankProfile

There are two windows, one after the other. The first has no Python stacks, which make the host
slower and would make a device wait for it: times, shapes and idle are from it. The second, short
one has stacks: source lines and synchronisations are from it.
"""
