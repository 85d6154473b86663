"""Networks of timm, torchvision and transformers with random weights: their files, and their logits of random images.

    python torch_networks.py FOLDER IMAGE_SIZE LIBRARY:NETWORK… ──▶ FOLDER/images.npy, [N, H, W, 3] float32
                                                                    FOLDER/LIBRARY:NETWORK.safetensors
                                                                    FOLDER/LIBRARY:NETWORK.npy, [N, 10] logits

Runs in the environment of `make test-torch`, which has no TensorFlow. An entry IMAGE_SIZE>SIZE writes the file for the
one size and the logits of the other, to which timm has resized the position embeddings.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file

TIMM = {"vit_s16": "vit_small_patch16_224", "vit_b16": "vit_base_patch16_224"}
DEPTHS = {"resnet18": [2, 2, 2, 2], "resnet34": [3, 4, 6, 3], "resnet50": [3, 4, 6, 3], "resnet101": [3, 4, 23, 3]}


def make(library: str, network: str, image_size: int) -> Any:
    """Returns a network for ten classes."""
    is_vit = network.startswith("vit")
    if library == "timm":
        sized = {"img_size": image_size} if is_vit else {}
        return timm.create_model(TIMM.get(network, network), pretrained=False, num_classes=10, **sized)
    if library == "torchvision":
        sized = {"image_size": image_size} if is_vit else {}
        name = {"vit_b16": "vit_b_16"}.get(network, network)
        return torchvision.models.get_model(name, weights=None, num_classes=10, **sized)
    if is_vit:
        wide = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536} if network == "vit_s16" else {}
        return transformers.ViTForImageClassification(
            transformers.ViTConfig(image_size=image_size, num_labels=10, **wide)
        )
    is_basic = network in ("resnet18", "resnet34")
    config = transformers.ResNetConfig(
        depths=DEPTHS[network],
        layer_type="basic" if is_basic else "bottleneck",
        hidden_sizes=[64, 128, 256, 512] if is_basic else [256, 512, 1024, 2048],
        num_labels=10,
    )
    return transformers.ResNetForImageClassification(config)


def randomize(model: torch.nn.Module) -> None:
    """Gives statistics, biases and scales values of their own, which start as zeros and ones."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or any(part in name for part in ("fc.", "head", "classifier", "pos", "token")):
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1


def main(folder: str, size: str, *names: str) -> None:
    stored_size, _, fed_size = size.partition(">")
    fed = int(fed_size or stored_size)
    images = np.random.default_rng(0).normal(size=(2, fed, fed, 3)).astype(np.float32)
    np.save(f"{folder}/images.npy", images)
    for name in names:
        library, _, network = name.partition(":")
        torch.manual_seed(0)
        model = make(library, network, int(stored_size)).eval()
        randomize(model)
        save_file(
            {key: value.contiguous() for key, value in model.state_dict().items()}, f"{folder}/{name}.safetensors"
        )
        if fed_size:
            model.set_input_size(fed)
        with torch.no_grad():
            logits = model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
        np.save(f"{folder}/{name}.npy", getattr(logits, "logits", logits).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
