"""Lightning's Trainer with automatic optimization, training and validation loaders.

The counts include Lightning's sanity check, which validates two batches before the training.
"""

import json
import warnings

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[Tensor, Tensor]


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
        self.samples = 0
        self.validations = 0
        self.val_batches = 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        print("loss", loss.item().hex())
        self.samples += len(x)
        return loss

    def on_validation_epoch_start(self) -> None:
        self.validations += 1

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        x, y = batch
        accuracy = (self.net(x).argmax(dim=1) == y).float().mean()
        self.log("val_accuracy", accuracy)
        self.val_batches += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def make_set(size: int) -> TensorDataset:
    return TensorDataset(torch.randn(size, 512), torch.randint(0, 10, (size,)))


def main() -> None:
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    pl.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    train_loader = DataLoader(make_set(3200), batch_size=200, shuffle=True)
    val_loader = DataLoader(make_set(800), batch_size=200)
    model = Classifier()
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train_loader, val_loader)

    counts = {"steps": trainer.global_step, "samples": model.samples}
    counts |= {"validations": model.validations, "val_batches": model.val_batches}
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
