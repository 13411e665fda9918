"""The doctor: what is set wrong, what that costs, and what mends it.

rule.py        what a rule is, and the case that it looks at
thresholds.py  every number that a rule compares with
appetite.py    how much data a GPU could train on
visit.py       a short run of a command
inside/        what is watched in its processes
habits.py      what they were seen to do
script.py      the user's own source, and which of it is a step
training.py    all of that, as rules look at it
cure.py        gains and cures in the form that all rules give them
examine.py     all rules over one case, their findings in order
rules/         one file a rule; RULES lists them
"""
