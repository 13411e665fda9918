"""The tuner: climbs from a baseline to the fastest settings that train the same.

scratch.py   a copy of the working folder, in which trials leave the user's files alone
bench.py     runs trials in that copy, one after another, and remembers them
trial.py     one short run with some levers, in clean processes: Trial
noise.py     how far apart two measurements are, and whether that is outside the noise
guard.py     whether a trial is still the same training
order.py     which levers to try, and in what order
bottleneck.py  what a step waits for, and what is hidden behind it
forecast.py  how long further trials will take
climb.py     baseline, and one lever after another
standing.py  the best so far, the rungs that led there, and the way back
second_chance.py  levers that were not kept and are tried again
ending.py    leave-one-out, and the ratio that is claimed
rungs.py     rungs as data, and their gains in words
prove.py     baseline and winner to N steps on several seeds
sweep.py     memory, rate and power for each batch size
tune.py      all of it for one command of a user: Tuning
settings.py  `hotlap.toml`: what was kept, to be applied by `hotlap run`
"""
