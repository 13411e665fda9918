"""The chronometer: runs a training command unchanged and says where its step goes.

    launcher                               measured process (each rank)
    --------                               -----------------------------------------
    launch.py  starts the command   --->   inject/sitecustomize.py  waits for `import torch`
                                           hooks.py     patches the few functions every loop calls
                                           session.py   turns their calls into marks
                                           tape.py      marks in a memory-mapped file: SIGKILL-proof
                                           device.py    CUDA events for the marks, resolved late
               waits, forwards signals
    steps.py   marks -> steps and phases   (run by the rank at its end, or by the launcher for a
                                            rank that was killed)
    merge.py   rank files -> Run    <---   rank-00000-….json

Where no launcher of hotlap's stands above, the ranks record themselves: headless.py.

A step and its marks, as a plain loop makes them (time runs to the right):

    | fetch | gap | to(device) | gap | model call, loss | backward | gap | optimizer | gap | fetch
    | data  |other| transfer   |other| forward          | backward |other| optimizer |other| ...

Nothing is computed in the step but a mark: a clock read and four words put into a buffer.
"""

from pathlib import Path

INJECT = Path(__file__).parent / "inject"
"""In front of PYTHONPATH, it brings the hooks into every Python of a command."""
