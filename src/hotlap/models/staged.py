"""The shape that all reference models have: a stem, a row of blocks, a head.

    input --embed--> hidden --block--> hidden ... --block--> hidden --predict--> output

Blocks are what is checkpointed and sharded, so a model names them: `blocks()`. Before, after and
between them a pipeline can be cut: `stage()`.
"""

from __future__ import annotations

import copy
from typing import ClassVar

from torch import Tensor, nn

from hotlap.errors import UsageError


class StagedModel(nn.Module):
    """A model, or a stage of one: the parts that a stage lacks are not there."""

    TENSOR_PARALLEL: ClassVar[dict[str, str]] = {}
    """Linear layers of a block, by their path in it: cut by 'columns' (output) or 'rows' (input).

    Empty where a block has nothing to cut.
    """
    STEM: ClassVar[tuple[str, ...]]
    """Attributes that belong to the first stage alone."""
    BLOCKS: ClassVar[tuple[str, ...]]
    """Attributes that are an `nn.Sequential` of blocks."""
    HEAD: ClassVar[tuple[str, ...]]
    """Attributes that belong to the last stage alone."""

    def __init__(self) -> None:
        super().__init__()
        self.is_first = True
        self.is_last = True

    def embed(self, inputs: Tensor) -> Tensor:
        """From the input to what the first block takes."""
        raise NotImplementedError

    def predict(self, hidden: Tensor) -> Tensor:
        """From what the last block gives to the output."""
        raise NotImplementedError

    def initialise(self) -> None:
        """Draw all weights anew, and reset all statistics.

        For a model that was made on the meta device: after `to_empty` it holds anything.
        """
        raise NotImplementedError

    def blocks(self) -> list[nn.Module]:
        """The repeated blocks, in order."""
        return [block for name in self.BLOCKS for block in getattr(self, name)]

    def forward(self, x: Tensor) -> Tensor:
        """The output; of a stage that is not the last one, what the next stage takes."""
        if self.is_first:
            x = self.embed(x)
        for block in self.blocks():
            x = block(x)
        return self.predict(x) if self.is_last else x

    def stage(self, first_block: int, end_block: int, is_first: bool, is_last: bool) -> StagedModel:
        """A stage of a pipeline: the blocks from one up to, but not including, another.

        The first stage has the stem too, the last one the head. What is left keeps its name, so
        that the state dicts of all stages together are that of the model. Parameters are shared
        with it, not copied.
        """
        self._check_cut(first_block, end_block, is_first, is_last)
        # What deepcopy finds in its memo it takes as it is: modules are copied, tensors are not.
        tensors = (*self.parameters(), *self.buffers())
        stage = copy.deepcopy(self, {id(tensor): tensor for tensor in tensors})
        stage.is_first, stage.is_last = is_first, is_last
        stage._keep_blocks(first_block, end_block)
        for name in (*(() if is_first else self.STEM), *(() if is_last else self.HEAD)):
            delattr(stage, name)
        return stage

    def _keep_blocks(self, first_block: int, end_block: int) -> None:
        rows = [getattr(self, name) for name in self.BLOCKS]
        places = [(row, name) for row in rows for name, _ in row.named_children()]
        for row, name in places[:first_block] + places[end_block:]:
            # Not `del row[i]`, which would number the others anew.
            delattr(row, name)

    def _check_cut(self, first_block: int, end_block: int, is_first: bool, is_last: bool) -> None:
        n_blocks = len(self.blocks())
        what = f"a stage of blocks {first_block} up to {end_block} was asked for"
        if not 0 <= first_block <= end_block <= n_blocks:
            raise UsageError(f"{what}; {type(self).__name__} has blocks 0 up to {n_blocks}")
        if is_first and first_block > 0:
            raise UsageError(f"{what} as the first one; that has to begin with block 0")
        if is_last and end_block < n_blocks:
            raise UsageError(f"{what} as the last one; that has to go up to block {n_blocks}")
