"""The reference trainer: every good practice in one loop that reads top to bottom.

settings.py     all settings of a training, checked when they are read
recipe.py       recipes, and `key=value`; recipes/ has those of the package
__main__.py     the training process: settings -> launch -> build -> train
recording.py    the training as a Run, on all its ranks
build.py        from settings to model, optimizer and data, in the order it has to be done
loop.py         the loop
update.py       one update: forward, backward, optimizer
learner.py      the model and its loss as one module, compiled as one program
tasks.py        the loss, and what of it is counted
validate.py     loss and accuracy on what was not trained on
precision.py    autocast, scaling, TF32
fp8.py          linear layers in fp8
clip.py         gradient clipping over ranks
optimizers/     SGD, AdamW, LARS, LAMB, Lion, Muon
schedules.py    the learning rate, a function of the step
ema.py          averaged weights
metrics.py      sums on the device, that nothing waits for
progress.py     lines, `log.jsonl`, TensorBoard
checkpoint.py   torch's distributed checkpoints: asynchronous, atomic, checked
keeper.py       when a checkpoint is due, and how a training takes up from one
state.py        the state of a training as named tensors
signals.py      what ranks have to agree on between two steps
export.py       the weights as one safetensors file
"""
