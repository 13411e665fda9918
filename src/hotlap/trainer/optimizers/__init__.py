"""The optimizers of the trainer: those of torch, and four that torch has not or not for all models.

settings.py   OptimizerSettings: which one, with what numbers
build.py      build_optimizer: a model's parameters, in groups, into the optimizer asked for
hidden.py     which parameters are hidden matrices, the ones that Muon takes
lars.py       LARS: SGD with a rate for each layer; large batches of images
lamb.py       LAMB: Adam with a rate for each layer; large batches of text
lion.py       Lion: the sign of the momentum; half of Adam's state
muon.py       Muon: orthogonal updates of hidden matrices, AdamW for all else
bucket.py     what the four share: a step over buckets of parameters, sharded or not
moments.py    Adam's two moments, which LAMB and Muon need
"""
