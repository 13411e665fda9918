"""The model and its loss as one module: compiled, they are one program.

The logits of a GPT are the largest tensor of its step. Where the loss is compiled along with the
model, they are not written down once more in fp32.
"""

from __future__ import annotations

from torch import Tensor, nn

from hotlap.trainer.settings import Task
from hotlap.trainer.tasks import Reduction, loss_of


class Learner(nn.Module):
    """Called with targets it gives their loss; without, the model's output."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        label_smoothing: float = 0.0,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__()
        self.model = model
        self._label_smoothing = label_smoothing
        self._reduction = reduction
        self._gives_logits = task == "images"

    def forward(
        self, inputs: Tensor, targets: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """The loss over the targets, and for images the logits, to count hits."""
        logits: Tensor = self.model(inputs)
        if targets is None:
            return logits
        loss = loss_of(logits, targets, self._label_smoothing, self._reduction)
        return loss, logits.detach() if self._gives_logits else None
