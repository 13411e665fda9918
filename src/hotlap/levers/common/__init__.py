"""What levers are made of. A lever imports from here and never from another lever.

lever.py      Lever: the frozen description; Decision: yes or no, with the reason
workload.py   Workload: what the baseline was seen to do, which decides whether a lever applies
process.py    Process: what a lever gets in the training process, to change it and to undo that
inside.py     the entry into the training process: applies the levers asked for, writes events
noise.py      the guard's yardstick: noise of the size of rounding on every gradient
fingerprint.py  inputs, gradients and parameters of the first updates, for the guard
edits.py      the same change as an edit of the user's own source; source.py finds the place,
              calls.py and rewrite.py change the text
autocast.py, later.py, loaders.py, modules.py, optimizers.py
              what several levers have in common
fp8.py        linear layers in fp8; the reference trainer has them from here, too
"""
