"""What levers are made of. A lever imports from here and never from another lever.

lever.py      Lever: the frozen description; Decision: yes or no, with the reason
workload.py   Workload: what the baseline was seen to do, which decides whether a lever applies
process.py    Process: what a lever gets in the training process, to change it and to undo that
inside.py     the entry into the training process: applies the levers asked for, writes events
edits.py      the same change as an edit of the user's own source
"""
