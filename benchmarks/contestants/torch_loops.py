"""A hand-written PyTorch loop, and Lightning's `Trainer.fit` without logger and progress bar."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from .task import BATCH, CLASSES, FEATURES, HEADS, SIDE, WIDTH, WORDS, Task, Train, arrays, timed_epochs


def make(name: str, task: Task) -> Train:
    """A new model of `task` and its loop."""
    model = {"mlp": _mlp, "cnn": _cnn, "transformer": _Transformer}[task.model]()
    return _lightning(model, task) if name == "lightning" else _loop(model, task)


def _loop(model: nn.Module, task: Task) -> Train:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, eps=1e-7)

    def epoch(steps: int) -> None:
        xs, ys = _tensors(task, steps)
        order = torch.randperm(len(xs))
        loss = torch.zeros(())
        for indices in order.split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(xs[indices]), ys[indices])
            loss.backward()
            optimizer.step()
        assert np.isfinite(loss.item())

    return lambda epochs, steps, goes_on=False: timed_epochs(epochs, lambda: epoch(steps))


def _lightning(model: nn.Module, task: Task) -> Train:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.seconds: list[float] = []

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            return nn.functional.cross_entropy(self.model(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-3, eps=1e-7)

        def on_train_epoch_start(self) -> None:
            self.began = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            self.seconds.append(time.perf_counter() - self.began)

    module = Module()

    def train(epochs: int, steps: int, goes_on: bool = False) -> list[float]:
        module.seconds = []
        data = torch.utils.data.TensorDataset(*_tensors(task, steps))
        loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader)
        return module.seconds

    return train


def _tensors(task: Task, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = arrays(task.model, steps)
    return torch.from_numpy(x), torch.from_numpy(y)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE)),
        nn.Flatten(3),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (SIDE // 4) ** 2, CLASSES),
    )


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "relu", 1e-3, True, norm_first=True)
                for _ in range(2)
            ]
        )
        self.last = nn.Sequential(nn.LayerNorm(WIDTH, 1e-3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.blocks(self.embedding(x))).mean(1))
