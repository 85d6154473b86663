"""Near-duplicates by perceptual hash: pairs of images that are nearly the same picture.

    hashes ──common ones once──▶ near_pairs: within DISTANCE bits, without comparing all with all
           ──the pixels of those pairs, 32 x 32──▶ alike: correlated by ALIKE ──▶ group

Every pair within DISTANCE bits is found and counted, except pairs whose bytes of the hash are shared by too many
images to compare them all; these images are counted too.

Neither test is sufficient alone. Measured with benchmarks/conversion/near_duplicates.py, which documents the source of
the pictures, on 260 photographs (animals, monuments, tools) and on 519 pictures of nebulae, which have similar hashes:

    bits that differ, at most                       3        4        5        6        7
    changed photos:    JPEG quality 60           97 %     98 %     98 %     99 %     99 %
                       2/3 size, quality 60      48 %     67 %     81 %     87 %     91 %
                       contrast x 1.3            91 %     96 %     98 %     99 %     99 %
    of  33,670 pairs of two photographs             3        4        4        4        4
    of 134,421 pairs of two nebulae                17       47      152      372      773

Those 4 pairs of photographs are in fact the same picture twice; no pair of nebulae is. By the distribution of the other
pairs' distances (mean 31.6 bits, deviation 5.1), some 9 in 100 million pairs of different photographs are within 5
bits, which is 70,000 of ImageNet's 8e11 pairs. The limit is therefore 5 bits, followed by a comparison of the pixels:
every photograph that was re-encoded, made smaller or changed in contrast or brightness, and is within 5 bits,
correlates with its original by 0.98 or more; no pair of nebulae does. Not found are pictures that are mirrored or
rotated, and most that are cropped: of those cropped by 2 % on each side, 53 % are within 5 bits, and a quarter of these
correlates by 0.98.

The search takes 8 s for a million hashes and 210 s for ten million, on one core, and 370 MB of memory for ten million.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from tpu_input.dataset_format.decode_limits import MAX_PIXELS, too_slow
from tpu_input.dataset_format.orientation import FORMATS, orientation_transpose
from tpu_input.stored_images.check import perceptual_hash

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

DISTANCE = 5  # most bits of 64 that differ
ALIKE = 0.98  # least correlation of 32 x 32 gray pixels
SAMPLE_SIDE = 32  # pixels
# Pixels of each side that libjpeg's scaling leaves at least. Of half as many, the 32 areas of a row are 2 or 3 pixels
# wide in turn, and the same photograph at another size correlates with itself by 0.991 only.
_DECODED_SIDE = 192
_MAX_PIXELS = 40_000_000  # most pixels decoded; libjpeg's scaling reduces larger JPEGs first
MAX_SHARED = 50  # images; a hash shared by more belongs to a blank page or a placeholder, and is reported so
# A hash with fewer bits set, or fewer bits clear, belongs to a flat picture or a plain gradient. Among 7,200 crops
# of desktop backgrounds and nebulae, 62,682 pairs from different pictures are within 5 bits, but only 2,343 without the
# 600 plain crops; of the photographs, 1 of 260 is plain. Gradients of any pictures correlate, so the pixels of plain
# pictures have to be equal, apart from the changes that re-encoding causes.
_MIN_BITS = 8
_SAME_GREY = 3.0  # mean difference in levels of 255; JPEG of quality 60 changes plain pictures by less than 2
_FLAT = 2.0  # deviation in levels; below it, there is nothing but noise to correlate
_BLOCKS = 8  # number of bytes in which a hash is compared
_CHUNK = 1 << 20  # hashes per chunk in steps that need a multiple of the memory of their hashes
MOST_PAIRS = 10_000_000  # at each distance
_PAIRS_AT_ONCE = 4096
_BUDGET = 100_000_000  # comparisons for each choice of bytes, which take some 2 s
# Order of bits in which every byte has one bit of each row and column of the picture. Without it, a byte of the hash is
# one row, and rows are similar. With it, three equal bytes are 17 times rarer among different photographs and 7 times
# rarer among nebulae, which makes the search faster by the same factor.
_DIAGONALS = np.array([row * 8 + (row + start) % 8 for start in range(8) for row in range(8)])


class NearPairs(NamedTuple):
    """Result of near_pairs().

    Attributes:
      pairs: [n, 2] positions in the hashes, the smaller first; nearest pairs first.
      distances: [n] number of bits that differ.
      counts: Number of pairs of images found at each distance from 0; larger than the number in `pairs` if there are
        more than the limit, or if hashes represent several images.
      num_crowded: Images whose hash was not compared with all other hashes that might be near.
    """

    pairs: Rows
    distances: Rows
    counts: tuple[int, ...]
    num_crowded: int


def near_pairs(
    hashes: Hashes,
    distance: int = DISTANCE,
    limit: int = 100_000,
    budget: int = _BUDGET,
    images: npt.NDArray[np.int64] | None = None,
) -> NearPairs:
    """Returns all pairs of hashes that differ in at most `distance` bits.

    If at most `distance` bits differ, at least 8 - distance of the 8 bytes are equal. Every pair is therefore found by
    comparing the hashes that are equal in one of the choices of 8 - distance bytes (pigeonhole principle; as in
    G. Manku, A. Jain, A. Das Sarma, "Detecting Near-Duplicates for Web Crawling", WWW 2007). For 5 bits these are 56
    choices of three bytes, each with a sort of n hashes and a comparison of every pair that is equal in these bytes:
    fewer than one pair in a million of different photographs.

    Args:
      hashes: [n], any order.
      distance: Most bits that differ, 0 to 7.
      limit: Maximum number of pairs returned for each distance.
      budget: Comparisons after which the search in one choice of bytes is stopped; the pairs that are left out are in
        the largest groups of equal bytes.
      images: [n] number of images that each hash represents; default: one. A pair of hashes that represent several
        images is counted as the number of pairs of images, and not returned.
    """
    spread = _spread(hashes)
    weights = np.ones(len(hashes), np.int64) if images is None else images
    counts, crowded = np.zeros(distance + 1, np.int64), np.zeros(len(hashes), bool)
    num_selected = [0] * (distance + 1)
    chunks: list[list[Rows]] = [[np.zeros((0, 2), np.int64)] for _ in counts]
    for blocks in itertools.combinations(range(_BLOCKS), _BLOCKS - distance):
        for first, second in _equal(spread & _mask(blocks), budget, crowded):
            different = spread[first] ^ spread[second]
            bits = count_bits(different)
            near = np.flatnonzero(bits <= distance)
            near = near[_is_first_choice(different[near], blocks)]
            for level in range(distance + 1):
                indices = near[bits[near] == level]
                pairs = weights[first[indices]] * weights[second[indices]]
                selected = indices[pairs == 1][: limit - num_selected[level]]
                chunks[level].append(np.stack([first[selected], second[selected]], axis=1))
                num_selected[level] += len(selected)
                counts[level] += pairs.sum()
    levels = [_sorted(np.concatenate(level)) for level in chunks]
    distances = np.repeat(np.arange(distance + 1), [len(level) for level in levels])
    return NearPairs(np.concatenate(levels), distances, tuple(counts.tolist()), int(weights[crowded].sum()))


def count_bits(values: Hashes) -> npt.NDArray[np.uint8]:
    """Returns how many bits of each value are set; NumPy 1 has no function for it."""
    m1, m2, m4 = (np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))
    values = values - ((values >> np.uint64(1)) & m1)
    values = (values & m2) + ((values >> np.uint64(2)) & m2)
    values = (values + (values >> np.uint64(4))) & m4
    return ((values * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint8)


def is_plain(hashes: Hashes) -> Mask:
    """Returns which hashes have too little information to compare, as flat pictures and plain gradients have."""
    mask = np.empty(len(hashes), bool)
    for start in range(0, len(hashes), _CHUNK):
        bits = count_bits(hashes[start : start + _CHUNK])
        mask[start : start + _CHUNK] = (bits < _MIN_BITS) | (bits > 64 - _MIN_BITS)
    return mask


def common_hashes(hashes: Hashes) -> list[tuple[int, int]]:
    """Returns (hash, number of images) of every hash that more than MAX_SHARED images share, the most common first."""
    ordered = np.sort(hashes)
    values = np.unique(ordered[MAX_SHARED:][ordered[MAX_SHARED:] == ordered[:-MAX_SHARED]])
    counts = np.searchsorted(ordered, values, side="right") - np.searchsorted(ordered, values)
    return sorted(zip(values.tolist(), counts.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))


def alike(samples: npt.NDArray[np.float32], pairs: Rows, plain_pairs: Mask | None = None) -> Mask:
    """Returns for which pairs the two pictures correlate by ALIKE or more.

    Args:
      samples: [n, pixels] gray values of complete pictures, 0 to 255, each resized to the same size.
      pairs: [m, 2] rows of `samples`.
      plain_pairs: [m] pairs with a stricter test: their pixels also have to be equal to within _SAME_GREY. For two flat
        pictures, in which there is nothing to correlate, this is the only test.
    """
    if plain_pairs is None:
        plain_pairs = np.zeros(len(pairs), bool)
    centred = samples - samples.mean(axis=1, keepdims=True)
    is_flat = centred.std(axis=1) < _FLAT
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    centred /= np.maximum(norms, 1e-6)  # a flat picture correlates with nothing
    parts = [np.zeros(0, bool)]
    for start in range(0, len(pairs), 4096):  # 4,096 pairs of 32 x 32: 32 MB
        first, second = pairs[start : start + 4096].T
        is_match = np.einsum("ij,ij->i", centred[first], centred[second]) >= ALIKE
        strict = np.flatnonzero(plain_pairs[start : start + 4096])
        first, second = first[strict], second[strict]
        is_same = np.abs(samples[first] - samples[second]).mean(axis=1) <= _SAME_GREY
        is_match[strict] = is_same & (is_match[strict] | (is_flat[first] & is_flat[second]))
        parts.append(is_match)
    return np.concatenate(parts)


def alike_pairs(pairs: Rows, samples: Mapping[int, npt.NDArray[Any]], hashes: Hashes) -> list[tuple[int, int]]:
    """Returns those pairs of records whose pixels are alike; see alike().

    Args:
      pairs: [m, 2] numbers of the records.
      samples: SAMPLE_SIDE x SAMPLE_SIDE gray values of each of them, by number.
      hashes: Hashes of all records, in the order of their numbers.
    """
    numbers = np.unique(pairs)
    pixels = np.array([samples[number] for number in numbers.tolist()], np.float32).reshape(-1, SAMPLE_SIDE**2)
    plain_pairs = is_plain(hashes[pairs.ravel()]).reshape(-1, 2).any(axis=1)
    is_alike = alike(pixels, np.searchsorted(numbers, pairs), plain_pairs)
    return [(first, second) for first, second in pairs[is_alike].tolist()]


def near_of_all(hashes: Hashes, numbers: Rows, limit: int = 100_000) -> tuple[NearPairs, Rows]:
    """Returns the pairs of near hashes, and the record numbers of the positions in these pairs.

    Args:
      hashes: One hash per content.
      numbers: Record number of each hash.
      limit: As of near_pairs().
    """
    values, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    is_common = counts > MAX_SHARED
    rare = np.flatnonzero(~np.isin(hashes, values[is_common]))
    positions = np.concatenate([rare, first[is_common]])  # of the images that share a common hash, one represents all
    images = np.concatenate([np.ones(len(rare), np.int64), counts[is_common]])
    return near_pairs(hashes[positions], limit=limit, images=images), numbers[positions]


class Picture(NamedTuple):
    """What is compared of an image.

    Attributes:
      content: SHA-256 of its file.
      hash: Perceptual hash, 64 bits, unsigned.
      grey: Gray values, SAMPLE_SIDE x SAMPLE_SIDE bytes.
    """

    content: bytes
    hash: int
    grey: bytes


def picture(data: bytes) -> Picture | None:
    """Returns what is compared of the image in `data`, upright; None if it cannot be opened, or not fast enough."""
    try:
        if not (image := load_small(data, "L")):
            return None
        grey = image.convert("L")
        if (transpose := orientation_transpose(image)) is not None:
            grey = grey.transpose(transpose)
        small = grey.resize((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.BOX)
    except Exception:  # damaged files cause exceptions of many types in Pillow
        return None
    return Picture(hashlib.sha256(data).digest(), perceptual_hash(grey) % (1 << 64), small.tobytes())


def groups_of(pictures: list[Picture]) -> list[list[int]]:
    """Returns the positions of pictures that look alike, in groups, each sorted."""
    firsts: dict[bytes, int] = {}
    pairs = [
        (first, position)
        for position, entry in enumerate(pictures)
        if (first := firsts.setdefault(entry.content, position)) != position
    ]
    numbers = np.array(list(firsts.values()), np.int64)
    hashes = np.array([entry.hash for entry in pictures], np.uint64)
    near, numbers = near_of_all(hashes[numbers], numbers, MOST_PAIRS)
    for start in range(0, len(near.pairs), _PAIRS_AT_ONCE):
        chunk = numbers[near.pairs[start : start + _PAIRS_AT_ONCE]]
        samples = {number: np.frombuffer(pictures[number].grey, np.uint8) for number in np.unique(chunk).tolist()}
        pairs += alike_pairs(chunk, samples, hashes)
    return group(pairs)


def grey_sample(data: bytes) -> npt.NDArray[np.float32] | None:
    """Returns the gray values of the image in `data`, upright and resized to 32 x 32, as far as it can be decoded.

    Of a JPEG only the brightness is decoded, in less than half of the time that its colors take.

    Returns:
      [1024] 0 to 255, or None if the image cannot be opened, or is too large or too slow to decode.
    """
    try:
        if not (image := load_small(data, "L")):
            return None
        small = image.convert("L").resize((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.BOX)
        if (transpose := orientation_transpose(image)) is not None:
            small = small.transpose(transpose)
    except Exception:  # damaged files cause exceptions of many types in Pillow
        return None
    return np.asarray(small, np.float32).ravel()


def load_small(data: bytes, mode: str | None = None, side: int = _DECODED_SIDE) -> ImageFile.ImageFile | None:
    """Returns an image with its pixels as far as they can be decoded; None if that would take too long.

    Args:
      data: The file.
      mode: "L" to decode only the brightness of a JPEG; None for its colors.
      side: Pixels that are needed at least of each side: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if that
        leaves as many.
    """
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    if too_slow(image, data, MAX_PIXELS):
        return None
    image.draft(mode, (side, side))
    if image.width * image.height > _MAX_PIXELS:
        return None
    with contextlib.suppress(OSError, SyntaxError):  # pixels decoded before the end or damage remain
        image.load()
    image.tile = []  # otherwise the next step would decode again
    return image


def group(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Returns the connected components of pairs, each sorted, in the order of their smallest member."""
    groups: dict[int, list[int]] = {}
    for pair in pairs:
        small, large = sorted((groups.setdefault(member, [member]) for member in pair), key=len)
        if small is not large:
            large += small
            groups.update(dict.fromkeys(small, large))
    return sorted(sorted(members) for members in {id(members): members for members in groups.values()}.values())


def _spread(hashes: Hashes) -> Hashes:
    """Returns the hashes with their bits in the order of _DIAGONALS."""
    spread = np.empty_like(hashes)
    for start in range(0, len(hashes), _CHUNK):  # one byte per bit: 64 MB
        rows = hashes[start : start + _CHUNK].astype(">u8").view(np.uint8).reshape(-1, 8)
        packed = np.packbits(np.unpackbits(rows, axis=1)[:, _DIAGONALS], axis=1)
        spread[start : start + _CHUNK] = np.ascontiguousarray(packed).view(np.uint64)[:, 0]
    return spread


def _mask(blocks: Iterable[int]) -> np.uint64:
    return np.uint64(sum(0xFF << 8 * block for block in blocks))


def _equal(keys: Hashes, budget: int, crowded: Mask) -> Iterator[tuple[Rows, Rows]]:
    """Yields the positions of equal keys, every pair once; marks in `crowded` the keys that the budget leaves out."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts, step = np.flatnonzero(keys[:-1] == keys[1:]), 1
    while len(starts):
        if (budget := budget - len(starts)) < 0:
            crowded[order[starts]] = crowded[order[starts + step]] = True
            return
        yield order[starts], order[starts + step]
        step += 1
        starts = starts[: np.searchsorted(starts, len(keys) - step)]
        starts = starts[keys[starts] == keys[starts + step]]


def _is_first_choice(different: Hashes, blocks: tuple[int, ...]) -> Mask:
    """Returns for which pairs `blocks` are the first of their equal bytes, so that every pair is counted once."""
    first: Mask = np.ones(len(different), bool)
    for block in set(range(blocks[-1])).difference(blocks):
        first &= (different & _mask([block])) != 0
    return first


def _sorted(pairs: Rows) -> Rows:
    ordered: Rows = np.sort(pairs, axis=1)
    ordered = ordered[np.lexsort((ordered[:, 1], ordered[:, 0]))]
    return ordered
