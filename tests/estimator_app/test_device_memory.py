"""Padding and order of tensors in a TPU's memory, as its compiler writes them."""

from __future__ import annotations

import pytest

from estimator_app.preflight.compile import Tensor, tensors

HLO = """HloModule step, entry_computation_layout={()->f32[]{:T(128)}}

%fused (p: f32[8]) -> f32[8] {
  ROOT %inside = f32[4096,4096]{1,0:T(8,128)} add(%p, %p)
}

ENTRY %main (images: u8[128,224,224,3], more: f32[8]) -> f32[] {
  %images = u8[128,224,224,3]{0,2,3,1:T(8,128)(4,1)} parameter(0), metadata={op_name="XLA_Args"}
  %kernel = f32[3,3,64,64]{3,2,1,0:T(8,128)} parameter(1)
  %f = (bf16[16,56,56,64]{3,0,2,1:T(8,128)(2,1)}, f32[64]{0:T(128)}) fusion(%images), metadata={op_name="cnn/Conv2D"}
  %part = bf16[16,56,56,64]{3,0,2,1:T(8,128)(2,1)} get-tuple-element(%f), index=0
  %near = f32[1024,1024]{1,0:T(8,128)S(1)} copy(%part)
  ROOT %loss = f32[]{:T(128)} reduce(%near)
}
"""


def test_the_main_computation_s_tensors_are_read_with_what_made_them():
    images, kernel, conv, vector, loss = tensors(HLO)
    assert (str(images), images.opcode, images.order("NHWC")) == ("u8[128,224,224,3]", "parameter", "HCWN")
    assert images.padded_bytes == images.bytes == 128 * 224 * 224 * 3
    assert kernel.padded_bytes == 2 * kernel.bytes
    assert (conv.made_by, conv.order("NHWC"), conv.tile) == ("cnn/Conv2D", "HWNC", (8, 128))
    assert conv.padded_bytes == 2 * conv.bytes == 2 * 2 * 16 * 56 * 56 * 64
    assert (vector.bytes, vector.padded_bytes) == (4 * 64, 4 * 128)
    assert (loss.bytes, loss.padded_bytes) == (4, 4 * 128)


@pytest.mark.parametrize(
    ("sizes", "minor_to_major", "tile", "times"),
    [
        ((16, 112, 112, 3), (3, 0, 2, 1), (8, 128), 128 / 3),
        ((16, 112, 112, 12), (3, 0, 2, 1), (8, 128), 128 / 12),
        ((12,), (0,), (8, 128), 8 * 128 / 12),
        ((1000, 2048), (1, 0), (8, 128), 1),
        ((1000, 2048), (1, 0), (), 1),
        ((1001,), (0,), (1024,), 1024 / 1001),
    ],
)
def test_what_does_not_fill_a_tile_is_padding(sizes, minor_to_major, tile, times):
    tensor = Tensor("f32", sizes, minor_to_major, tile, "fusion", "")
    assert tensor.padded_bytes / tensor.bytes == pytest.approx(times)
