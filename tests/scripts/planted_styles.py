"""The busy waits of planted.py in other styles of loop, each summed over the step it fell in."""

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from spin import Ledger, SpinBackward, SpinNet, SpinSGD, parse
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

BATCH = 8
MICRO_BATCHES = 4
EPOCHS = 3
VAL_BATCHES = 5


class Collate:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def __call__(self, items: list[Any]) -> Any:
        self.ledger.spin("data")
        return default_collate(items)


def make_loader(batches: int, ledger: Ledger, workers: int = 0) -> DataLoader:
    data = TensorDataset(torch.randn(batches * BATCH, 4), torch.randn(batches * BATCH, 1))
    return DataLoader(data, BATCH, collate_fn=Collate(ledger), num_workers=workers)


def train(
    batches: Any,
    ledger: Ledger,
    model: nn.Module,
    optimizer: Any,
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        backward(loss)
        optimizer.step()
        ledger.spin("other")
        ledger.end_step()


def accumulate(steps: int, ledger: Ledger) -> None:
    model = SpinNet(ledger)
    optimizer = SpinSGD(model.parameters(), ledger)
    for i, (x, y) in enumerate(make_loader(steps * MICRO_BATCHES, ledger), start=1):
        loss = F.mse_loss(model(x), y) / MICRO_BATCHES
        loss.backward()
        if i % MICRO_BATCHES == 0:
            optimizer.step()
            optimizer.zero_grad()
            ledger.spin("other")
            ledger.end_step()


def scaler(steps: int, ledger: Ledger) -> None:
    model = SpinNet(ledger)
    optimizer = SpinSGD(model.parameters(), ledger)
    grad_scaler = torch.amp.GradScaler("cpu")
    for x, y in make_loader(steps, ledger):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
        ledger.spin("other")
        ledger.end_step()


def lbfgs(steps: int, ledger: Ledger) -> None:
    class SpinLBFGS(torch.optim.LBFGS):
        def step(self, closure: Callable[[], Tensor]) -> Tensor:
            loss = super().step(closure)
            ledger.spin("optimizer")
            return loss

    model = SpinNet(ledger)
    optimizer = SpinLBFGS(model.parameters(), lr=0.1, max_iter=3)
    for x, y in make_loader(steps, ledger):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        ledger.spin("other")
        ledger.end_step()


def gan(steps: int, ledger: Ledger) -> None:
    generator, critic = SpinNet(ledger, outputs=4), SpinNet(ledger)
    optimizer_g = SpinSGD(generator.parameters(), ledger)
    optimizer_d = SpinSGD(critic.parameters(), ledger)
    for x, _ in make_loader(steps, ledger):
        fake = generator(torch.randn_like(x))
        optimizer_d.zero_grad()
        loss_d = F.softplus(-critic(x)).mean() + F.softplus(critic(fake.detach())).mean()
        loss_d.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        loss_g = F.softplus(-critic(fake)).mean()
        loss_g.backward()
        optimizer_g.step()
        ledger.spin("other")
        ledger.end_step()


def validation(steps: int, ledger: Ledger) -> None:
    model = SpinNet(ledger)
    optimizer = SpinSGD(model.parameters(), ledger)
    train_loader = make_loader(steps // EPOCHS, ledger)
    val_loader = make_loader(VAL_BATCHES, ledger)
    for _ in range(EPOCHS):
        model.train()
        train(train_loader, ledger, model, optimizer)
        model.eval()
        with ledger.validation(), torch.no_grad():
            for x, y in val_loader:
                F.mse_loss(model(x), y)


def generator(steps: int, ledger: Ledger) -> None:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(steps):
            ledger.spin("data")
            yield torch.randn(BATCH, 4), torch.randn(BATCH, 1)

    model = SpinNet(ledger)
    train(batches(), ledger, model, SpinSGD(model.parameters(), ledger))


def functional(steps: int, ledger: Ledger) -> None:
    weight = torch.randn(4, 1, requires_grad=True)
    optimizer = SpinSGD([weight], ledger)
    for x, y in make_loader(steps, ledger):
        ledger.spin("forward")
        loss = (SpinBackward.apply(x @ weight, ledger) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ledger.spin("other")
        ledger.end_step()


def loader2(steps: int, ledger: Ledger) -> None:
    model = SpinNet(ledger)
    optimizer = SpinSGD(model.parameters(), ledger)
    train(make_loader(steps, ledger, workers=2), ledger, model, optimizer)


def lightning(steps: int, ledger: Ledger) -> None:
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = SpinNet(ledger)

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            return F.mse_loss(self.net(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return SpinSGD(self.parameters(), ledger)

        def on_train_batch_end(self, *args: Any) -> None:
            ledger.spin("other")
            ledger.end_step()

    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), make_loader(steps, ledger))


def accelerate(steps: int, ledger: Ledger) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = SpinNet(ledger)
    optimizer = SpinSGD(model.parameters(), ledger)
    loader = make_loader(steps, ledger)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    train(loader, ledger, model, optimizer, accelerator.backward)


def hf(steps: int, ledger: Ledger) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(SpinNet):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = super().forward(x)
            return {"loss": F.mse_loss(logits, labels), "logits": logits}

    class Callback(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ledger.spin("other")
            ledger.end_step()

    data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(steps * BATCH)]
    model = Model(ledger)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model,
            arguments,
            data_collator=Collate(ledger),
            train_dataset=data,
            optimizers=(SpinSGD(model.parameters(), ledger), None),
            callbacks=[Callback()],
        )
        trainer.train()


STYLES: dict[str, Callable[[int, Ledger], None]] = {
    f.__name__: f
    for f in (
        *(accumulate, scaler, lbfgs, gan, validation, generator, functional, loader2),
        *(lightning, accelerate, hf),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", choices=STYLES, required=True)
    args = parse(parser)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    STYLES[args.style](args.steps, args.ledger)
    args.ledger.report(without=("data",) if args.style == "loader2" else ())


if __name__ == "__main__":
    main()
