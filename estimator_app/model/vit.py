"""Vision transformer: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", without its last layer.

    images [N, H, W, 3] ──patches──▶ [N, H/P × W/P, width] ──class token, positions──▶ [N, 1 + H/P × W/P, width]
        ──depth × (attention, MLP)──▶ normalized ──class token──▶ [N, width]

The blocks normalize their input rather than their output, and have no dropout, whose random state is not saved, so that
resumed runs are exact; Steiner et al. 2022, "How to train your ViT?", find that augmentation does more for the S/16.
"""

from __future__ import annotations

from typing import Any

from estimator_app.model.keras_library import keras, layers, ops

_EPSILON = 1e-6  # of all normalizations, as in the paper's own code, google-research/vision_transformer


def encoded(images: Any, patch: int, width: int, depth: int, heads: int, mlp_width: int) -> Any:
    """Returns the features of images, [N, width]: the last block's output at the class token, normalized.

    Args:
      images: [N, H, W, 3].
      patch: Height and width of a patch, in pixels; divides H and W.
      width: Features of a patch.
      depth: Number of blocks.
      heads: Heads of an attention; divides `width`.
      mlp_width: Features of the layer between the two of an MLP.
    """
    patches = layers.Conv2D(width, patch, patch, name="patches")(images)
    tokens = Positions(name="positions")(layers.Reshape([-1, width])(patches))
    for number in range(1, depth + 1):
        name = f"block{number}"
        tokens = layers.add([tokens, _attention(_normalised(tokens, f"{name}_attention_norm"), heads, name)])
        hidden = layers.Dense(mlp_width, "gelu", name=f"{name}_mlp1")(_normalised(tokens, f"{name}_mlp_norm"))
        tokens = layers.add([tokens, layers.Dense(width, name=f"{name}_mlp2")(hidden)])
    return _normalised(ClassToken(name="class_token")(tokens), "norm")


def _normalised(tokens: Any, name: str) -> Any:
    """Returns the tokens with mean 0 and deviation 1 each, then scaled; computed in float32 under any precision."""
    return layers.LayerNormalization(epsilon=_EPSILON, name=name)(tokens)


def _attention(tokens: Any, heads: int, name: str) -> Any:
    width = tokens.shape[-1]
    query, key, value = (layers.Dense(width, name=f"{name}_{part}")(tokens) for part in ("query", "key", "value"))
    return layers.Dense(width, name=f"{name}_projection")(
        Attention(heads, name=f"{name}_attention")([query, key, value])
    )


class Positions(keras().layers.Layer):  # type: ignore[misc]
    """Puts a class token before the tokens, and adds what each position has learned."""

    def build(self, shape: Any) -> None:
        """Makes the variables: the class token begins as zeros, positions as in the paper's code."""
        _, count, width = shape
        normal = keras().initializers.RandomNormal(stddev=0.02)
        self.token = self.add_weight(name="class_token", shape=[1, 1, width], initializer="zeros")
        self.positions = self.add_weight(name="positions", shape=[1, 1 + count, width], initializer=normal)

    def call(self, tokens: Any) -> Any:
        """Tokens [N, count, width] → [N, 1 + count, width]"""
        token = ops().cast(self.token, tokens.dtype)
        first = ops().broadcast_to(token, [ops().shape(tokens)[0], 1, tokens.shape[-1]])
        return ops().concatenate([first, tokens], axis=1) + ops().cast(self.positions, tokens.dtype)

    def compute_output_shape(self, shape: Any) -> Any:
        """Returns the shape with one more token."""
        return (shape[0], shape[1] + 1, shape[2])


class ClassToken(keras().layers.Layer):  # type: ignore[misc]
    """Takes the class token, [N, width]."""

    def call(self, tokens: Any) -> Any:
        """Tokens [N, 1 + count, width] → [N, width]"""
        return tokens[:, 0]

    def compute_output_shape(self, shape: Any) -> Any:
        """Returns the shape without the axis of the tokens."""
        return (shape[0], shape[2])


class Attention(keras().layers.Layer):  # type: ignore[misc]
    """Attention of several heads (Vaswani et al. 2017), without its dense layers; its softmax is float32 always."""

    def __init__(self, heads: int, **options: Any) -> None:
        """Takes the number of heads, which divides the width."""
        super().__init__(**options)
        self.heads = heads

    def call(self, inputs: Any) -> Any:
        """Of [N, count, width] each: queries, keys, values → [N, count, width]"""
        count, width = inputs[0].shape[1:]
        size = width // self.heads
        # [N, count, width] -> [N, heads, count, size]
        query, key, value = (
            ops().transpose(ops().reshape(part, [-1, count, self.heads, size]), [0, 2, 1, 3]) for part in inputs
        )
        logits = ops().cast(ops().matmul(query, ops().transpose(key, [0, 1, 3, 2])), "float32") * size**-0.5
        attended = ops().matmul(ops().cast(ops().softmax(logits), value.dtype), value)
        return ops().reshape(ops().transpose(attended, [0, 2, 1, 3]), [-1, count, width])

    def compute_output_shape(self, shapes: Any) -> Any:
        """Returns the shape of the queries."""
        return shapes[0]

    def get_config(self) -> dict[str, Any]:
        """Returns the layer's options."""
        return {**super().get_config(), "heads": self.heads}
