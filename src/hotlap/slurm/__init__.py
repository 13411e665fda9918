"""From the laptop to the cluster.

profile.py     a cluster's TOML file, read strictly; profiles/ holds those of the package
catalogue.py   which clusters are known
programs.py    Slurm's own programs, and one sentence where they are not there
discover.py    a profile from the live cluster, and how far a profile agrees with it
resources.py   nodes, tasks, cores, partition, QoS and account from 'N GPUs for T hours'
"""
