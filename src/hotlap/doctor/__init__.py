"""The doctor: what is set wrong, what that costs, and what mends it.

rule.py        what a rule is, and the case that it looks at
thresholds.py  every number that a rule compares with
appetite.py    how much data a GPU could train on
examine.py     all rules over one case, their findings in order
rules/         one file a rule; RULES lists them
"""
