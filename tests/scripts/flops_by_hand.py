"""The floating-point operations of one training step of resnet.py and gpt.py, worked out by hand.

A multiply-add counts 2. The backward pass of a matrix product or of a convolution is two such
products of the same size as the forward one: the gradient of its input and that of its weight.
Only matrix products and convolutions count: not biases, norms, activations, lookups, the loss or
the optimizer.
"""

FORWARD = 1
INPUT_GRADIENT = 1
WEIGHT_GRADIENT = 1
ALL = FORWARD + INPUT_GRADIENT + WEIGHT_GRADIENT


def conv(batch: int, inputs: int, outputs: int, kernel: int, side: int) -> int:
    """Forward of a convolution that leaves pictures of side x side: each number of its result is
    a sum over `inputs` channels of kernel x kernel products."""
    return 2 * batch * outputs * side * side * inputs * kernel * kernel


def linear(rows: int, inputs: int, outputs: int) -> int:
    """Forward of (rows x inputs) @ (inputs x outputs)."""
    return 2 * rows * inputs * outputs


def resnet_step_flops() -> int:
    """Batch of 8 pictures 3 x 32 x 32; stages of 16, 32, 64, 128 channels on sides 32, 16, 8, 4."""
    batch = 8

    # Stem, 3 -> 16 channels, on 32 x 32. The pictures need no gradient.
    total = conv(batch, 3, 16, kernel=3, side=32) * (FORWARD + WEIGHT_GRADIENT)

    # Stage 1: two blocks of two 3x3 convolutions, 16 -> 16, on 32 x 32, no shortcut convolution.
    total += 4 * conv(batch, 16, 16, kernel=3, side=32) * ALL

    for inputs, outputs, side in ((16, 32, 16), (32, 64, 8), (64, 128, 4)):
        # First convolution of the first block: widens and halves the side (stride 2).
        total += conv(batch, inputs, outputs, kernel=3, side=side) * ALL
        # Its shortcut: a 1x1 convolution of stride 2.
        total += conv(batch, inputs, outputs, kernel=1, side=side) * ALL
        # Second convolution of the first block and both of the second one.
        total += 3 * conv(batch, outputs, outputs, kernel=3, side=side) * ALL

    # Classifier on the averaged pictures, 128 -> 10.
    total += linear(batch, 128, 10) * ALL
    return total


def gpt_step_flops() -> int:
    """Batch of 4 sequences of 64 tokens; 2 layers of width 64, 4 heads of 16; vocabulary 256."""
    batch, sequence, width, heads, layers, vocabulary = 4, 64, 64, 4, 2, 256
    rows = batch * sequence

    # The embeddings are lookups: 0. Their weights need gradients, so every product below has
    # an input gradient too.
    layer = linear(rows, width, 3 * width)  # queries, keys and values
    # Scores q @ k.T of each head, (s x 16) @ (16 x s), the full square although it is causal.
    layer += batch * heads * linear(sequence, width // heads, sequence)
    # Their sums of values, (s x s) @ (s x 16).
    layer += batch * heads * linear(sequence, sequence, width // heads)
    layer += linear(rows, width, width)  # projection after attention
    layer += linear(rows, width, 4 * width)  # MLP up
    layer += linear(rows, 4 * width, width)  # MLP down

    head = linear(rows, width, vocabulary)  # untied, at every position
    return (layers * layer + head) * ALL
