"""Reference models: small, plain, and equal to the published ones.

staged.py         stem, blocks, head: the shape all of them have, and its cut into pipeline stages
resnet.py         ResNet 18 to 152, with torchvision's names
transformer.py    the block that ViT and GPT share, and its plan for tensor parallelism
vit.py            vision transformers with patches of 16 pixels
gpt.py            decoders of GPT-2's shape, at its sizes or any other
checkpointing.py  activations of blocks are computed again in backward, of any model
settings.py       what a recipe says about the model: ModelSettings
build.py          the model of these settings: one of MODELS, or one of the user's own

Every model has `blocks()`, `stage()`, `initialise()` and `TENSOR_PARALLEL`.
"""
