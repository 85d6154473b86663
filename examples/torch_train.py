"""Training with PyTorch on a dataset of jpeg2tpu, without TensorFlow: exact evaluation, resume at any step.

    python examples/torch_train.py DATASET MODEL_DIR --steps=1000

Run the same command to resume: MODEL_DIR/checkpoint.pt has the weights, the optimizer's state and the step, and the
batches from that step on are those of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import tpu_input
from tpu_input.config import fitting_input

Batch = dict[str, torch.Tensor]


def make_network(classes: int) -> nn.Module:
    """Returns a small convolutional network: [N, 3, height, width] float32 -> [N, classes] logits."""

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)]
    return nn.Sequential(*block(3, 32), *block(32, 64), *block(64, 128), *head)


class Normalize(nn.Module):
    """Turns [N, height, width, 3] uint8 into [N, 3, height, width] float32, on the device."""

    def __init__(self, config: tpu_input.InputConfig) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(config.mean), persistent=False)
        self.register_buffer("std", torch.tensor(config.std), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return ((images - self.mean) / self.std).permute(0, 3, 1, 2)


def batches(source: Any, batch_size: int, workers: int, device: torch.device) -> Iterator[Batch]:
    """Yields the source's batches; it is shuffled already, so the loader must read it in order."""
    loader = DataLoader(source, batch_size, shuffle=False, num_workers=workers, pin_memory=device.type == "cuda")
    for batch in loader:
        yield {name: values.to(device, non_blocking=True) for name, values in batch.items()}


@torch.no_grad()
def evaluate(model: nn.Module, validation: Iterator[Batch]) -> dict[str, float]:
    """Returns loss and accuracy over every example exactly once: padding has weight 0."""
    model.eval()
    loss = correct = count = 0.0
    for batch in validation:
        logits, labels, weights = model(batch["image"]), batch["label"].long(), batch["weight"]
        loss += float((nn.functional.cross_entropy(logits, labels, reduction="none") * weights).sum())
        correct += float(((logits.argmax(1) == labels) * weights).sum())
        count += float(weights.sum())
    model.train()
    return {"loss": loss / count, "accuracy": correct / count, "examples": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="folder or gs:// URI of a converted dataset")
    parser.add_argument("model_dir", type=Path, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=1000, help="steps to train in all (default: %(default)s)")
    parser.add_argument("--eval_steps", type=int, default=200, help="steps between evaluations (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="images of a step (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes that decode (default: %(default)s)")
    parser.add_argument("--learning_rate", type=float, default=0.1, help="highest rate (default: %(default)s)")
    parser.add_argument("--no_flip", action="store_true", help="do not mirror images, e.g. digits")
    flags = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    manifest = tpu_input.read_manifest(flags.dataset)
    train = manifest.split("train")
    config = tpu_input.InputConfig(
        **fitting_input(train), mean=train.channel_mean, std=train.channel_std, flip=not flags.no_flip
    )
    model = nn.Sequential(Normalize(config), make_network(len(manifest.classes))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), flags.learning_rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, flags.learning_rate, flags.steps)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    step, path = 0, flags.model_dir / "checkpoint.pt"
    if path.exists():
        state = torch.load(path, map_location=device)
        step = state["step"]
        for name, part in parts.items():
            part.load_state_dict(state[name])
    flags.model_dir.mkdir(parents=True, exist_ok=True)

    validation = tpu_input.EvalSource(manifest, config, flags.batch_size)
    while step < flags.steps:
        end = min((step // flags.eval_steps + 1) * flags.eval_steps, flags.steps)
        source = tpu_input.TrainSource(manifest, config, flags.batch_size, start_step=step, end_step=end)
        began, timed = time.monotonic(), step
        for batch in batches(source, flags.batch_size, flags.workers, device):
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if (seconds := time.monotonic() - began) > 10:
                speed = (step - timed) * flags.batch_size / seconds
                print(f"step {step}: loss {float(loss):.4f}, {speed:.3g} images/s", file=sys.stderr, flush=True)
                began, timed = time.monotonic(), step
        measured = evaluate(model, batches(validation, flags.batch_size, flags.workers, device))
        temporary = path.with_suffix(".new")
        torch.save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, temporary)
        os.replace(temporary, path)
        print(json.dumps({"step": step, "train_loss": float(loss)} | measured), flush=True)


if __name__ == "__main__":
    main()
