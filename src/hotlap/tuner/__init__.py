"""The tuner: climbs from a baseline to the fastest settings that train the same.

scratch.py   a copy of the working folder, in which trials leave the user's files alone
trial.py     one short run with some levers, in clean processes: Trial
noise.py     how far apart two measurements are, and whether that is outside the noise
guard.py     whether a trial is still the same training
order.py     which levers to try, and in what order
climb.py     baseline, rungs, leave-one-out: Ladder
prove.py     baseline and winner to N steps on several seeds
sweep.py     memory, rate and power for each batch size
"""
