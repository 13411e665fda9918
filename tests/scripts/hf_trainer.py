"""Hugging Face Trainer on a small GPT-2 with random weights, evaluated once per epoch.

Losses come from the Trainer's own log of each update: exact without accumulation. With
--accumulate above 1 the log holds only the sum over the micro-batches, so none are printed.
"""

import argparse
import json
import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

EPOCHS = 2


class RandomTokens(Dataset):
    def __init__(self, size: int) -> None:
        self.tokens = torch.randint(0, 256, (size, 64))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Counter(TrainerCallback):
    def __init__(self, accumulate: int) -> None:
        self.accumulate = accumulate
        self.validations = 0
        self.val_batches = 0

    def on_log(self, args, state, control, logs, **kwargs) -> None:
        if "loss" in logs and self.accumulate == 1:
            print("loss", logs["loss"].hex())

    def on_prediction_step(self, args, state, control, **kwargs) -> None:
        self.val_batches += 1

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        self.validations += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    set_seed(0)
    torch.set_num_threads(1)
    train_set, eval_set = RandomTokens(128), RandomTokens(32)
    sizes = {"vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    counter = Counter(args.accumulate)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=args.accumulate,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model, arguments, train_dataset=train_set, eval_dataset=eval_set, callbacks=[counter]
        )
        trainer.train()

    counts = {"steps": trainer.state.global_step, "samples": EPOCHS * len(train_set)}
    counts |= {"validations": counter.validations, "val_batches": counter.val_batches}
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
