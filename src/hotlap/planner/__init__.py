"""The planner: arithmetic, no GPU, no torch but in the one process that traces a model.

layers        the model as data            transformer, config_json, tracing, by_params make it
cluster       GPUs and their links         training, precision, layout: what is done and how cut
memory        bytes of the worst rank
work          what a step does at nominal rates: counting, products, links, stages
calibration   what hardware and software reach of them; step makes seconds of both
intervals     how sure they are
predict, search, scaling, budget, plan     from one prediction to the whole answer
runs, measured, emit    a Run or a Machine beside it; a recipe that can be run
"""
