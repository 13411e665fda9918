"""What levers are made of. A lever imports from here and never from another lever.

lever.py      Lever: the frozen description; Decision: yes or no, with the reason
workload.py   Workload: what the baseline was seen to do, which decides whether a lever applies
process.py    Process: what a lever gets in the training process, to change it and to undo that
inside.py     the entry into the training process: applies the levers asked for, writes events
noise.py      the guard's yardstick: noise of the size of rounding on every gradient
fingerprint.py  inputs, gradients and parameters of the first updates, for the guard
edits.py      the same change as an edit of the user's own source; source.py finds the place,
              calls.py and rewrite.py change the text
own_batches.py, results.py, writes.py, losses.py, blocks.py
              what else a baseline is asked: its batches, its results, the files it writes, its loss
autocast.py, halves.py, compiled_loss.py, later.py, loaders.py, modules.py, optimizers.py,
pinning.py
              what several levers have in common
graphed.py    a model whose calls are replayed; recording.py one call of it, cuda_recorder.py its
              graphs, reads.py what it reads and writes, unchanged.py whether it still holds,
              layouts.py how its tensors lie in memory, given.py what else it gives
palette.py    images as bytes that become floats when they are looked at
fp8.py        linear layers in fp8; the reference trainer has them from here, too
"""
