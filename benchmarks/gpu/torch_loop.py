"""A hand-written PyTorch loop: the same models, automatic mixed precision, a gradient scaler in float16."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from torch import nn

from .task import Size, Task

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS = 3


def loop(task: Task) -> list[float]:
    """Seconds of each round."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = task.precision == "tf32"
    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(task.precision)
    model = _model(task).to(DEVICE).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, eps=1e-7)
    scaler = torch.amp.GradScaler(DEVICE, enabled=task.precision == "float16")
    x, y = (torch.tensor(part).to(DEVICE) for part in task.arrays())
    x = x.permute(0, 3, 1, 2) if x.ndim == 4 else x
    y = y.long()
    size = task.size.batch

    def step(i: int) -> Any:
        first = (i % 2) * size
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=half or torch.bfloat16, enabled=half is not None):
            logits = model(x[first : first + size])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, -2), y[first : first + size].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return _rounds(task.steps, step)


def _rounds(steps: int, step: Any) -> list[float]:
    for i in range(3):
        step(i).item()
    seconds = []
    for _ in range(ROUNDS):
        began, last = time.perf_counter(), None
        for i in range(steps):
            last = step(i)
        last.item()  # pyright: ignore
        seconds.append(time.perf_counter() - began)
    return seconds


def peak_bytes() -> int | None:
    """PyTorch's peak memory on the GPU in bytes; None without a GPU."""
    return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else None


def _model(task: Task) -> nn.Module:
    size = task.size
    if task.model == "mlp":
        widths = [size.inputs[0], *[size.width] * size.blocks[0]]
        hidden = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(size.width, size.classes))
    return _ResNet(size) if task.model == "resnet50" else _Transformer(size, task.model == "gpt2")


def _convolved(before: int, filters: int, kernel: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(before, filters, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(filters))


class _Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int, first: bool) -> None:
        super().__init__()
        one, three = _convolved(before, width, 1), _convolved(width, width, 3, stride)
        self.inner = nn.Sequential(one, nn.ReLU(), three, nn.ReLU(), _convolved(width, 4 * width, 1))
        self.shortcut = _convolved(before, 4 * width, 1, stride) if first else nn.Identity()

    def forward(self, x: Any) -> Any:
        return torch.relu(self.shortcut(x) + self.inner(x))


class _ResNet(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        parts: list[nn.Module] = [_convolved(3, size.width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        before = size.width
        for stage, blocks in enumerate(size.blocks):
            width = size.width * 2**stage
            for block in range(blocks):
                parts.append(_Bottleneck(before, width, 2 if stage and not block else 1, not block))
                before = 4 * width
        self.body, self.head = nn.Sequential(*parts), nn.Linear(before, size.classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, size: Size, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = size.heads, causal
        self.mix, self.out = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.norms = nn.ModuleList([nn.LayerNorm(size.width), nn.LayerNorm(size.width)])
        wide = 4 * size.width
        self.feed = nn.Sequential(nn.Linear(size.width, wide), nn.GELU(), nn.Linear(wide, size.width))

    def attend(self, x: Any) -> Any:
        batch, places, width = x.shape
        parts = self.mix(x).view(batch, places, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, places, width))

    def forward(self, x: Any) -> Any:
        if self.causal:
            x = x + self.attend(self.norms[0](x))
            return x + self.feed(self.norms[1](x))
        x = self.norms[0](x + self.attend(x))
        return self.norms[1](x + self.feed(x))


class _Transformer(nn.Module):
    def __init__(self, size: Size, causal: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(size.classes, size.width)
        self.places = nn.Parameter(torch.randn(size.inputs[0], size.width) * 0.02)
        self.blocks = nn.Sequential(*[_Block(size, causal) for _ in range(size.blocks[0])])
        self.norm = nn.LayerNorm(size.width) if causal else nn.Identity()
        self.head = nn.Linear(size.width, size.classes)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places)))
