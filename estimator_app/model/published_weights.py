"""Published weights of ResNets and ViTs: files of safetensors with the names of other libraries.

    .safetensors ──names──▶ {"stage1_block1_conv1/kernel": layer1.0.conv1.weight, …} ──checks──▶ arrays

timm, torchvision and Hugging Face's transformers have names of their own. Their networks compute what ours do: a
bottleneck's stride is in its 3 × 3 convolution, a convolution pads size // 2 on each side, batch normalization has an
epsilon of 1e-5, a ViT's GELU is exact and its normalizations have an epsilon of 1e-6 (transformers: 1e-12). A file must
have every variable of a network but its last layer, and no others: what has more, such as the squeeze-and-excitation of
an SE-ResNet, is another network, even if all names of ours are there.

Imports no framework.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from estimator_app.model.safetensors_files import READABLE, Header, Tensor, read_header, read_tensor
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format import json_fields

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_HEAD, _POSITIONS = "head", "positions/positions"
_RESNETS: dict[tuple[tuple[int, ...], bool], str] = {  # blocks of each stage, and whether they are bottlenecks
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
_VITS = {  # width, blocks and patch
    (192, 12, 16): "vit_ti16",
    (384, 12, 16): "vit_s16",
    (384, 12, 32): "vit_s32",
    (768, 12, 16): "vit_b16",
    (768, 12, 32): "vit_b32",
    (1024, 24, 16): "vit_l16",
}
PUBLISHED = ("resnet18", "resnet34", "resnet50", "resnet101", "vit_s16", "vit_b16")

# A layer of another library, and ours. Groups whose name ends in 0 are counted from 0 there; ours, from 1.
_BLOCK = r"layer(?P<stage>\d)\.(?P<block0>\d{1,2})"
_HF_BLOCK = r"(resnet\.)?encoder\.stages\.(?P<stage0>\d)\.layers\.(?P<block0>\d{1,2})"
_HF_LAYER = r"(vit\.)?encoder\.layer\.(?P<block0>\d{1,2})"
_TV_LAYER = r"encoder\.layers\.encoder_layer_(?P<block0>\d{1,2})"
_LAYERS = [
    (re.compile(theirs), ours)
    for theirs, ours in (
        # ResNets: timm and torchvision
        (r"conv1", "stem"),
        (r"bn1", "stem_norm"),
        (rf"{_BLOCK}\.conv(?P<conv>\d)", "stage{stage}_block{block}_conv{conv}"),
        (rf"{_BLOCK}\.bn(?P<conv>\d)", "stage{stage}_block{block}_conv{conv}_norm"),
        (rf"{_BLOCK}\.downsample\.0", "stage{stage}_block{block}_shortcut"),
        (rf"{_BLOCK}\.downsample\.1", "stage{stage}_block{block}_shortcut_norm"),
        (r"fc", _HEAD),
        # ResNets: transformers
        (r"(resnet\.)?embedder\.embedder\.convolution", "stem"),
        (r"(resnet\.)?embedder\.embedder\.normalization", "stem_norm"),
        (rf"{_HF_BLOCK}\.layer\.(?P<conv0>\d)\.convolution", "stage{stage}_block{block}_conv{conv}"),
        (rf"{_HF_BLOCK}\.layer\.(?P<conv0>\d)\.normalization", "stage{stage}_block{block}_conv{conv}_norm"),
        (rf"{_HF_BLOCK}\.shortcut\.convolution", "stage{stage}_block{block}_shortcut"),
        (rf"{_HF_BLOCK}\.shortcut\.normalization", "stage{stage}_block{block}_shortcut_norm"),
        (r"classifier\.1", _HEAD),
        # ViTs: timm
        (r"patch_embed\.proj", "patches"),
        (r"blocks\.(?P<block0>\d{1,2})\.norm1", "block{block}_attention_norm"),
        (r"blocks\.(?P<block0>\d{1,2})\.attn\.qkv", "block{block}_qkv"),
        (r"blocks\.(?P<block0>\d{1,2})\.attn\.proj", "block{block}_projection"),
        (r"blocks\.(?P<block0>\d{1,2})\.norm2", "block{block}_mlp_norm"),
        (r"blocks\.(?P<block0>\d{1,2})\.mlp\.fc(?P<dense>[12])", "block{block}_mlp{dense}"),
        (r"norm", "norm"),
        (r"head", _HEAD),
        # ViTs: transformers
        (r"(vit\.)?embeddings\.patch_embeddings\.projection", "patches"),
        (rf"{_HF_LAYER}\.layernorm_before", "block{block}_attention_norm"),
        (rf"{_HF_LAYER}\.attention\.attention\.(?P<part>query|key|value)", "block{block}_{part}"),
        (rf"{_HF_LAYER}\.attention\.output\.dense", "block{block}_projection"),
        (rf"{_HF_LAYER}\.layernorm_after", "block{block}_mlp_norm"),
        (rf"{_HF_LAYER}\.intermediate\.dense", "block{block}_mlp1"),
        (rf"{_HF_LAYER}\.output\.dense", "block{block}_mlp2"),
        (r"(vit\.)?layernorm", "norm"),
        (r"classifier", _HEAD),
        # ViTs: torchvision, whose files have two names for the layers of an MLP
        (r"conv_proj", "patches"),
        (rf"{_TV_LAYER}\.ln_1", "block{block}_attention_norm"),
        (rf"{_TV_LAYER}\.self_attention\.in_proj", "block{block}_qkv"),
        (rf"{_TV_LAYER}\.self_attention\.out_proj", "block{block}_projection"),
        (rf"{_TV_LAYER}\.ln_2", "block{block}_mlp_norm"),
        (rf"{_TV_LAYER}\.mlp\.(linear_1|0)", "block{block}_mlp1"),
        (rf"{_TV_LAYER}\.mlp\.(linear_2|3)", "block{block}_mlp2"),
        (r"encoder\.ln", "norm"),
        (r"heads\.head", _HEAD),
    )
]
_TENSOR_RULES = [
    (re.compile(r"cls_token|class_token|(vit\.)?embeddings\.cls_token"), "positions/class_token"),
    (re.compile(r"pos_embed|encoder\.pos_embedding|(vit\.)?embeddings\.position_embeddings"), _POSITIONS),
]
# Tensors that the logits do not depend on: PyTorch's count of batches, and a layer of transformers for other tasks.
_UNUSED = re.compile(r".+\.num_batches_tracked|(vit\.)?pooler\.dense\.(weight|bias)")
_NORM_KINDS = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
_DENSE_KINDS = {"weight": "kernel", "bias": "bias"}


@dataclasses.dataclass(frozen=True)
class Piece:
    """A tensor of a file, or a third of it, which becomes a variable.

    Attributes:
      name: Name of the tensor.
      third: 0, 1 or 2 for the queries, keys or values in a tensor of all three; None for a whole tensor.
    """

    name: str
    third: int | None = None


@dataclasses.dataclass(frozen=True)
class PublishedWeights:
    """What a network takes from a file.

    Attributes:
      values: Arrays by LAYER/KIND, float32, in the shapes of the network's variables.
      rows: (variable, its shape, tensor, its shape, why it was not taken or "") of every variable, then of the tensors
        that none has taken.
      remark: How the position embeddings were fitted to another image size; "" if they were not.
    """

    values: Mapping[str, Array]
    rows: tuple[tuple[str, str, str, str, str], ...]
    remark: str


def is_published(path: str) -> bool:
    """Returns whether a path of --init_from is one of a file of safetensors."""
    return path.endswith(".safetensors")


def read_published(file: IO[bytes], num_bytes: int, network: str, shapes: Mapping[str, Shape]) -> PublishedWeights:
    """Returns the weights that a network takes from a file; arrays are read after all checks of names and shapes.

    The last layer is left out if it is for another number of classes, or if the file has none.

    Args:
      file: File of safetensors, which can seek.
      num_bytes: Its length.
      network: Name of the network.
      shapes: Shapes of the network's variables by LAYER/KIND.

    Raises:
      ValueError: It is not such a file, or it has the weights of another network.
    """
    tensors = read_header(file, num_bytes).tensors
    pieces, unknown = _pieces(tensors)
    source = _described(tensors, pieces)
    if network not in PUBLISHED:
        raise ValueError(f"files of safetensors are read for {', '.join(PUBLISHED)}; --network is {network}")
    if source != network:
        article = "" if source in {*_RESNETS.values(), *_VITS.values()} else "a "
        advice = f"; use --network={source}" if source in PUBLISHED else ""
        raise ValueError(f"it has the weights of {article}{source}, --network is {network}{advice}")
    if unknown or pieces.keys() - shapes.keys():
        more = [*unknown, *(pieces[path].name for path in pieces.keys() - shapes.keys())]
        names = enumerated([json_fields.short_repr(name) for name in sorted(more)], 1, "more tensors")
        raise ValueError(f"it has {names}, which {network} does not have: it is of a variant of this network")
    reasons = _reasons(tensors, pieces, network, shapes)
    paths = [path for path in shapes if not reasons.get(path)]
    paths.sort(key=lambda path: tensors[pieces[path].name].start)
    values: dict[str, Array] = {}
    remark, read = "", Piece("")
    for path in paths:
        piece, tensor = pieces[path], tensors[pieces[path].name]
        if piece.name != read.name:  # the three thirds of a tensor follow one another
            array, read = read_tensor(file, piece.name, tensor), piece
        value = _converted(array, piece.third)
        if value.shape != shapes[path]:
            old, new = (math.isqrt(shape[1] - 1) for shape in (value.shape, shapes[path]))
            value, remark = resized_positions(value, new), f"positions resized from {old} x {old} to {new} x {new}"
        values[path] = value
    rows = []
    for path, shape in shapes.items():
        name = pieces[path].name if path in pieces else ""
        rows.append((path, str([*shape]), name, str([*tensors[name].shape]) if name else "", reasons.get(path, "")))
    rows += [("", "", name, str([*tensor.shape]), "not used") for name, tensor in tensors.items() if _is_unused(name)]
    return PublishedWeights({path: values[path] for path in shapes if path in values}, tuple(rows), remark)


def _is_unused(name: str) -> bool:
    return bool(_UNUSED.fullmatch(name))


def _pieces(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Piece], list[str]]:
    """Returns the tensors by the names of our variables, and the names of those that are not understood.

    Raises:
      ValueError: Two tensors are the same variable.
    """
    pieces: dict[str, Piece] = {}
    unknown = []
    for name in tensors:
        if _is_unused(name):
            continue
        if not (matches := _variables(name)):
            unknown.append(name)
        for path, third in matches:
            if path in pieces:
                raise ValueError(f"its tensors {pieces[path].name!r} and {name!r} are the same variable, {path}")
            pieces[path] = Piece(name, third)
    return pieces, unknown


def _variables(name: str) -> list[tuple[str, int | None]]:
    """Returns the variables that a tensor holds, by LAYER/KIND, and in which third of it they are; [] if none."""
    for pattern, path in _TENSOR_RULES:
        if pattern.fullmatch(name):
            return [(path, None)]
    theirs, _, suffix = name.replace(".in_proj_", ".in_proj.").rpartition(".")
    for pattern, template in _LAYERS:
        if match := pattern.fullmatch(theirs):
            groups = {
                group.rstrip("0"): int(text) + group.endswith("0") if text.isdecimal() else text
                for group, text in match.groupdict().items()
            }
            layer = template.format(**groups)
            kind = (_NORM_KINDS if layer.endswith("norm") else _DENSE_KINDS).get(suffix)
            if kind is None:
                return []
            if not layer.endswith("_qkv"):
                return [(f"{layer}/{kind}", None)]
            parts = ("query", "key", "value")
            return [(f"{layer.removesuffix('qkv')}{part}/{kind}", third) for third, part in enumerate(parts)]
    return []


def _described(tensors: Mapping[str, Tensor], pieces: Mapping[str, Piece]) -> str:
    """Returns the network whose weights these are: its name, or a description."""

    def shape(path: str) -> Shape:
        return tensors[pieces[path].name].shape if path in pieces else ()

    blocks = {int(match[1]) for path in pieces if (match := re.match(r"block(\d+)_", path))}
    patches = shape("patches/kernel")
    if blocks and len(patches) == 4:
        width, patch = patches[0], patches[2]
        description = f"ViT (width {width}, {len(blocks)} blocks, patches of {patch} pixels)"
        return _VITS.get((width, len(blocks), patch), description)
    stages = Counter(path[: len("stage1")] for path in pieces if re.fullmatch(r"stage\d_block\d+_conv1/kernel", path))
    if stages:
        depths = tuple(stages[stage] for stage in sorted(stages))
        description = f"ResNet ({', '.join(map(str, depths))} blocks)"
        return _RESNETS.get((depths, "stage1_block1_conv3/kernel" in pieces), description)
    names = ", ".join(json_fields.short_repr(name) for name in list(tensors)[:3])
    return f"network that is not known (its tensors are called {names or 'nothing'}, …)"


def _reasons(
    tensors: Mapping[str, Tensor], pieces: Mapping[str, Piece], network: str, shapes: Mapping[str, Shape]
) -> dict[str, str]:
    """Returns why variables of the last layer are not taken, by LAYER/KIND.

    Raises:
      ValueError: Another variable is missing, or has another shape or dtype.
    """
    reasons = {}
    for path, shape in shapes.items():
        in_head = path.startswith(f"{_HEAD}/")
        if path not in pieces:
            if not in_head:
                raise ValueError(f"it has no tensor for {path} of {network}")
            reasons[path] = "not in the source"
            continue
        piece, tensor = pieces[path], tensors[pieces[path].name]
        if not _fits(tensor.shape, piece.third, shape, path):
            if not in_head:
                raise ValueError(
                    f"its {piece.name!r} has the shape {[*tensor.shape]}, which does not fit {path} of {network}, "
                    f"{[*shape]}"
                )
            reasons[path] = "another shape"
        elif tensor.dtype not in READABLE:
            raise ValueError(f"its {piece.name!r} has dtype {tensor.dtype}; {', '.join(READABLE)} are read")
    if reasons:  # a kernel needs its bias
        reasons = {
            path: reasons.get(path, "the layer is not complete") for path in shapes if path.startswith(f"{_HEAD}/")
        }
    return reasons


def _fits(theirs: Shape, third: int | None, ours: Shape, path: str) -> bool:
    """Returns whether a tensor becomes a variable of the shape `ours` by _converted(), or by resized_positions()."""
    if third is not None:
        if not theirs or theirs[0] % 3:
            return False
        theirs = (theirs[0] // 3, *theirs[1:])
    if path == _POSITIONS:
        is_square = len(theirs) == 3 and theirs[1] > 1 and math.isqrt(theirs[1] - 1) ** 2 == theirs[1] - 1
        return is_square and theirs[1] <= _MOST_POSITIONS and (theirs[0], theirs[2]) == (ours[0], ours[2])
    if len(theirs) == 4:
        return (*theirs[2:], theirs[1], theirs[0]) == ours
    return (theirs[::-1] if len(theirs) == 2 else theirs) == ours


_MOST_POSITIONS = 1 + 256**2  # of images of 4,096 pixels in patches of 16


def _converted(array: Array, third: int | None) -> Array:
    """Returns a tensor of PyTorch as a variable of Keras.

    A convolution's [out, in, height, width] becomes [height, width, in, out], a dense layer's [out, in] becomes
    [in, out].
    """
    if third is not None:
        size = len(array) // 3
        array = array[third * size : (third + 1) * size]
    axes = {4: (2, 3, 1, 0), 2: (1, 0)}.get(array.ndim)
    return np.ascontiguousarray(array.transpose(axes) if axes else array)


def resized_positions(positions: Array, size: int) -> Array:
    """Returns a ViT's position embeddings for another number of patches; the class token's stays as it is.

    They are interpolated like the pixels of an image, as timm's resample_abs_pos_embed() does: bicubic, antialiased.

    Args:
      positions: [1, 1 + rows², width] float32, the class token first.
      size: Number of patches in a row.
    """
    old = math.isqrt(positions.shape[1] - 1)
    weights = _bicubic(old, size)
    grid = positions[0, 1:].reshape(old, old, -1).astype(np.float64)
    grid = np.einsum("ri,cj,ijd->rcd", weights, weights, grid, optimize=True).reshape(1, size * size, -1)
    resized: Array = np.concatenate([positions[:, :1], grid], axis=1).astype(np.float32)
    return resized


def _bicubic(old: int, new: int) -> Array:
    """Returns the matrix [new, old] of an antialiased bicubic interpolation: Keys 1981, with a = -0.5.

    torch.nn.functional.interpolate(antialias=True) and Pillow have the same: if the result is smaller, the kernel is
    stretched over as many values as one of the result stands for.
    """
    scale = old / new
    stretch = max(scale, 1.0)
    centers = (np.arange(new)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(old) + 0.5 - centers) / stretch
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    weights: Array = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


@dataclasses.dataclass(frozen=True)
class Normalization:
    """Normalization of the pixels on which weights were trained.

    Attributes:
      mean: Red, green and blue that are subtracted, in [0, 255].
      std: Red, green and blue that are divided by, in [0, 255].
      source: Where it is written, such as "config.json".
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    source: str


def find_normalization(header: Header, read_beside: Callable[[str], str | None]) -> Normalization | None:
    """Returns the normalization that a file or a file in its folder names; None if they name none.

    Args:
      header: Of the file. Its metadata may have "pretrained_cfg" in JSON, or "mean" and "std".
      read_beside: Returns the text of a file in the same folder, None if there is none: timm's config.json, with
        "pretrained_cfg", or transformers' preprocessor_config.json.

    Raises:
      ValueError: A file is not JSON, or what it names is not three numbers.
    """
    for name in ("metadata", "preprocessor_config.json", "config.json"):
        try:
            text = _metadata(header) if name == "metadata" else read_beside(name)
            settings = json_fields.load(text) if text else None
            if isinstance(settings, dict) and (normalization := _normalization(settings, name)):
                return normalization
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return None


def _metadata(header: Header) -> str | None:
    """Returns the metadata that name a normalization as JSON."""
    fields = {key: header.metadata[key] for key in ("pretrained_cfg", "mean", "std") if key in header.metadata}
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}" if fields else None


def _normalization(settings: Mapping[str, Any], source: str) -> Normalization | None:
    for key in ("pretrained_cfg", "default_cfg"):
        if isinstance(settings.get(key), dict):
            return _normalization(settings[key], source)
    largest = 255.0
    if "image_mean" in settings:  # transformers
        largest = 1 / json_fields.number(settings.get("rescale_factor", 1 / 255), "rescale_factor", 1e-6, 1.0)
        is_normalized = settings.get("do_normalize", True)
        mean, std = (settings["image_mean"], settings.get("image_std")) if is_normalized else ([0.0] * 3, [1.0] * 3)
        settings = {"mean": mean, "std": std}
    if "mean" not in settings or "std" not in settings:
        return None
    mean = _three(settings["mean"], "mean", 0.0, largest)
    std = _three(settings["std"], "std", 1e-3, largest)
    return Normalization(mean, std, source)


def _three(value: Any, name: str, least: float, largest: float) -> tuple[float, float, float]:
    """Returns three shares of the largest pixel as pixels."""
    red, green, blue = (
        round(json_fields.number(share, f"each of {name}", least, 1.0) * largest, 6)
        for share in json_fields.array(value, name, 3)
    )
    return red, green, blue
