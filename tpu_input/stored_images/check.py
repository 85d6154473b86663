"""Check of one image in a single decode: damage, readability by TensorFlow, size, statistics and perceptual hash.

bytes of a file ──check_image()──▶ CheckedImage (a JPEG that TensorFlow decodes), or Rejected with a reason code
bytes of a file ──stored_image()──▶ the same bytes, for a prediction
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageFile

from tpu_input.command_line.private_folders import make_private
from tpu_input.dataset_format import color_profiles
from tpu_input.dataset_format.decode_limits import DECODER_BYTES, is_fast, too_large, too_slow
from tpu_input.dataset_format.jpeg_markers import (
    END,
    has_end,
    is_decoded,
    misses_its_end,
    num_scans,
    plain_header,
    without_metadata,
)
from tpu_input.dataset_format.orientation import (
    FORMATS,
    STORED_MODES,
    apply_orientation,
    has_unknown_range,
    is_dark,
    is_transparent,
    orientation_transpose,
)
from tpu_input.dataset_format.records import PNG_BEGIN
from tpu_input.stored_images import jpeg_damage
from tpu_input.stored_images.image_options import MOST_LARGER, ImageOptions
from tpu_input.stored_images.jpeg_damage import Scale, decode_plain

SAMPLE_SIDE = 64  # pixels; the mean and deviation of a split come from 64 x 64 pixels of each image
MEASURED_SIDE = 256  # pixels; the shorter side to which ImageNet's images are resized for evaluation
_MAX_SIDE = 65_500  # pixels; libjpeg's JPEG_MAX_DIMENSION
STRIPPED = "metadata stripped"
_LOSSLESS = ("PNG", "BMP", "DIB", "GIF", "TIFF", "PPM")
_PNG_END = b"IEND\xaeB`\x82"
_JPEG = ("JPEG", "MPO")  # MPO: a JPEG followed by a camera's preview
# A bare codestream, and one in a container: ISO/IEC 18181-2.
_JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")  # of images in HEVC: ISO/IEC 23008-12
_PLAIN_BYTES = 14  # the most memory per pixel of a plain JPEG: the _peak_bytes() of a progressive one at full size
_LARGE_BYTES = 300_000_000  # memory for one image; a 37-megapixel photograph that is rotated takes as much
# Parts of the size at which a JPEG is decoded that is made smaller. Not 7/8, which takes longer than the full size.
_PARTS = tuple(Fraction(eighths, 8) for eighths in (1, 2, 3, 4, 5, 6))
_large_images = threading.Lock()
GPS_POSITION = "GPS position"
UNUSABLE_PROFILE = "unusable color profile"
IGNORED_PROFILE = "ignored color profile"
NOT_DECODED = "not decoded"
TRANSPARENT = "wholly transparent"
DARK = "at most 14 of 16 bits"
SLIGHTLY_LARGER = "slightly larger than --resize_shorter"
_POWERS = np.stack([np.arange(256), np.arange(256) ** 2], axis=1)  # values and their squares


class Rejected(Exception):
    """Raised for an input that cannot become a record.

    Attributes:
      reason: A stable code, e.g. "truncated".
      detail: Description of the problem.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class CheckedImage(NamedTuple):
    """An image as it will be stored.

    Attributes:
      encoded: A JPEG file, RGB or grayscale; with --lossless maybe a PNG file of 8 bits.
      height: Pixels.
      width: Pixels.
      channels: 3 or 1.
      sums: Sums of red, green and blue over SAMPLE_SIDE x SAMPLE_SIDE of its pixels, each in [0, 255]; None if no
        statistics were requested.
      squares: Sums of their squares over the same pixels; None likewise.
      dhash: 64-bit perceptual hash as a signed integer; near-duplicates differ in a few bits. None if the image was not
        decoded.
      fixed: Why it was re-encoded, e.g. "format PNG"; "" if it is stored byte for byte.
      noted: Other findings that are counted: GPS_POSITION, UNUSABLE_PROFILE, IGNORED_PROFILE, NOT_DECODED,
        SLIGHTLY_LARGER, TRANSPARENT, DARK or STRIPPED.
      source_size: (width, height) of the source in pixels, if it was re-encoded; () if those are the image's own.
    """

    encoded: bytes
    height: int
    width: int
    channels: int
    sums: list[int] | None
    squares: list[int] | None
    dhash: int | None
    fixed: str
    noted: tuple[str, ...] = ()
    source_size: tuple[int, ...] = ()


def check_image(data: bytes, options: ImageOptions, with_statistics: bool = True) -> CheckedImage:
    """Returns the image in `data`, decoded once and completely, re-encoded and resized as needed.

    JPEGs are decoded at a reduced scale where possible: libjpeg can skip the last step of decoding and return eighths
    of the size. It still reads the complete file, so damage is detected as at full size. An image that is stored byte
    for byte is decoded at the scale that the perceptual hash needs, which is a fifth cheaper, or, for statistics, at
    the size at which trainers see it. An image that is made smaller is decoded at least at one and a half times its
    final size, if it is that large.

    With check="header" and without statistics, a JPEG that is stored byte for byte is not decoded: its header is read,
    and its last bytes must be the end marker.

    Raises:
      Rejected: "empty", "not_an_image", "too_large", "too_slow", "too_small", "animated", "unknown_range", "truncated"
        or "corrupt".
      MemoryError: There is too little memory now; nothing is known about the image.
    """
    checked = _check_plain(data, options, with_statistics)
    if not checked:
        image = _open(data, options)
        with _damage_of(image):
            checked = _checked(image, data, options, with_statistics)
    return checked if checked.fixed or options.metadata == "keep" else _stripped(checked)


def stored_image(encoded: bytes, options: ImageOptions | None = None) -> bytes | ValueError:
    """Returns the image that a conversion stores of a file, or a ValueError that says why it stores none.

    Args:
      encoded: Content of a file.
      options: The conversion's; None for the defaults. A JPEG whose bytes are stored is not decoded here, and no
        image is too small.
    """
    options = dataclasses.replace(options or ImageOptions(), min_side=1)
    if options.reencode != "all":
        options = dataclasses.replace(options, check="header")
    try:
        return check_image(encoded, options, with_statistics=False).encoded
    except Rejected as error:
        return ValueError(f"{error.reason.replace('_', ' ')}: {error.detail}")


def _stripped(image: CheckedImage) -> CheckedImage:
    """Returns an image that is stored as it is, without metadata."""
    is_png = image.encoded.startswith(PNG_BEGIN)
    encoded = (_png_without_metadata if is_png else without_metadata)(image.encoded)
    if encoded == image.encoded:
        return image
    noted = tuple(note for note in image.noted if note != GPS_POSITION)
    return image._replace(encoded=encoded, noted=(*noted, STRIPPED))


def _png_without_metadata(data: bytes) -> bytes:
    """Returns a PNG with its critical chunks only, whose names begin with a capital letter: PNG, section 5.4."""
    chunks, offset = [data[:8]], 8
    while offset + 12 <= len(data):
        end = offset + 12 + int.from_bytes(data[offset : offset + 4], "big")
        if data[offset + 4 : offset + 5].isupper():
            chunks.append(data[offset:end])
        offset = end
    return b"".join(chunks)


def _check_plain(data: bytes, options: ImageOptions, with_statistics: bool) -> CheckedImage | None:
    """Returns a plain JPEG that is stored as it is; None for any other image, also for any that is to be rejected.

    The result is the same as _checked()'s. As Pillow does not read the header, the check of a JPEG of 48 x 36 pixels
    takes half of the time.
    """
    header = plain_header(data) if options.reencode == "needed" and data.endswith(END) else None
    if not header:
        return None
    mode, width, height = header
    shorter, num_pixels = min(width, height), width * height
    if shorter < options.min_side or _is_larger(shorter, options) or num_pixels > options.max_pixels:
        return None
    if _PLAIN_BYTES * num_pixels > _LARGE_BYTES or not is_fast(num_pixels, data, options.max_pixels):
        return None
    channels, notes = STORED_MODES[mode], _size_notes(shorter, options)
    if options.check == "header" and not with_statistics:
        return CheckedImage(data, height, width, channels, None, None, None, "", (*notes, NOT_DECODED))
    scale = (_moments_scale if with_statistics else _hash_scale)(width, height)
    pixels = decode_plain(data, header, scale)
    if not pixels:
        return None
    sums, squares = _moments(pixels) if with_statistics else (None, None)
    return CheckedImage(data, height, width, channels, sums, squares, perceptual_hash(pixels), "", notes)


def _checked(image: Image.Image, data: bytes, options: ImageOptions, with_statistics: bool) -> CheckedImage:
    fixed = _fixes(image, data, options)
    if not fixed and image.format in _JPEG and not has_end(data):
        fixed = ["JPEG without its end"]
    noted = _notes(image, options, keeps_bytes=not fixed)
    shrink = _is_larger(min(image.size), options, keeps_bytes=not fixed)
    scale = _scale(image, options, with_statistics, keeps_bytes=not fixed)
    width, height = size = image.size  # draft() changes it
    is_png = _is_stored_as_png(image, data, options)
    is_complete = data.endswith(_PNG_END if is_png else END)
    if options.check == "header" and not with_statistics and not fixed and not shrink and is_complete:
        channels = STORED_MODES[image.mode]
        return CheckedImage(data, height, width, channels, None, None, None, "", (*noted, NOT_DECODED))
    with _one_large_at_a_time(_peak_bytes(image, data, scale)):
        pixels = _decode(image, data, scale)
        noted += (TRANSPARENT,) if image.format not in ("BMP", "DIB") and is_transparent(pixels) else ()
        noted += (DARK,) if is_dark(pixels) else ()
        if fixed or shrink:
            if scale > 1:
                pixels = _shrunk(pixels, options.resize_shorter, (width, height))
            pixels = apply_orientation(image, options.color_profiles, pixels)
            pixels, data = _encode(_shrunk(pixels, options.resize_shorter), 0 if is_png else options.quality)
            width, height = pixels.size
        sums, squares = _moments(pixels) if with_statistics else (None, None)
        dhash = perceptual_hash(pixels)
    reason = ", ".join([*fixed, *(["larger than --resize_shorter"] if shrink else [])])
    source_size = size if reason else ()
    return CheckedImage(
        data, height, width, STORED_MODES[pixels.mode], sums, squares, dhash, reason, noted, source_size
    )


def _scale(image: Image.Image, options: ImageOptions, with_statistics: bool, keeps_bytes: bool) -> Scale:
    """Returns the factor by which a JPEG is reduced while decoded; when it is made smaller, 1 / one of _PARTS.

    What is left has at least one and a half times the final size. Measured on seven photographs without noise, with 14
    targets each: the pixels differ from a full decode, resized with the same filter, by 0.5 to 0.8 of 255
    levels on average (PSNR 40 dB at least, 46 to 49 on average), the JPEG that is then stored in quality 90 by
    2.5 to 5 (30 to 36 dB). With a scale that leaves at least the final size itself, it is 1.1 to 1.4 levels (33 dB).
    """
    if image.format not in _JPEG:
        return 1
    if _is_larger(min(image.size), options, keeps_bytes):
        needed = Fraction(3 * options.resize_shorter, 2 * min(image.size))
        return next((1 / part for part in _PARTS if part >= needed), Fraction(1))
    if not keeps_bytes:
        return 1
    return (_moments_scale if with_statistics else _hash_scale)(*image.size)


def _decode(image: Image.Image, data: bytes, scale: Scale) -> Image.Image:
    """Returns an image's pixels; a JPEG's at 1/scale of its size.

    Raises:
      Rejected: libjpeg warns about a JPEG, which is treated as damage.
    """
    pixels = None
    if image.format in _JPEG:
        # libjpeg does not warn about missing data in these. Pillow refuses most of them, also some that are complete.
        if not has_end(data) and not misses_its_end(data):
            image.load()
        try:
            pixels = jpeg_damage.decode(data, image, scale)
        except jpeg_damage.Damaged as damage:
            cut = not has_end(data) and "premature end" in str(damage)
            reason = "truncated" if cut else "corrupt"
            raise Rejected(reason, f"{image.format}: libjpeg warns: {damage}") from damage
    if not pixels:
        if scale > 1:
            image.draft(None, (int(image.width // scale), int(image.height // scale)))  # the next of 1, 2, 4 and 8
        if isinstance(image, ImageFile.ImageFile):
            # Reads the file as one block: of several, Pillow would copy the bytes that each leaves unused.
            image.decodermaxblock = len(data)
        image.load()
    return pixels or image


def stored_bytes(data: bytes, options: ImageOptions) -> int:
    """Returns the size in bytes at which an image is stored.

    If the header shows that the image is kept as it is, it is not decoded: the result is the size of `data`, even if
    the image is damaged.

    Raises:
      Rejected: As check_image() does.
    """
    image = _open(data, options)
    if _fixes(image, data, options) or _is_larger(min(image.size), options):
        return len(check_image(data, options, with_statistics=False).encoded)
    return len(data)


def _open(data: bytes, options: ImageOptions) -> Image.Image:
    if not data:
        raise Rejected("empty", "0 bytes")
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd metadata, and of sizes, which are checked below
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:
        raise Rejected("too_large", str(error)) from error
    except Exception as error:  # UnidentifiedImageError, and any other that damaged headers cause
        raise _unopened(data) from error
    if why := too_large(image, options.max_pixels):
        raise Rejected("too_large", f"{why}; the limit follows from --max_pixels={options.max_pixels}")
    if why := too_slow(image, data, options.max_pixels):
        raise Rejected("too_slow", f"{why}; the limit follows from --max_pixels={options.max_pixels}")
    if min(image.size) < options.min_side:
        raise Rejected(
            "too_small",
            f"{image.width} x {image.height} pixels; the shorter side is below --min_side={options.min_side}",
        )
    with _damage_of(image):
        _check_kind(image, data)
    return image


def _unopened(data: bytes) -> Rejected:
    """Returns the reason why Pillow cannot open a file: it has none of FORMATS, or it begins as one and is damaged."""
    if "HEIF" not in FORMATS and _is_heic(data):
        return Rejected("unsupported_format", "HEIC; to read it, run: pip install 'jpeg2tpu[heic]'")
    for name in FORMATS:
        factory, accepts = Image.OPEN[name]
        if accepts and accepts(data[:16]) is True:
            try:
                with warnings.catch_warnings(action="ignore"):
                    factory(io.BytesIO(data), "")
            except MemoryError:
                raise
            except Exception as error:
                return _damaged(name, error)
    if data.startswith(_RAW_BEGINS) or data[4:12] == b"ftypcrx ":
        return Rejected("unsupported_format", _RAW_FILE)
    if data.startswith(_JPEG_XL):
        return Rejected("unsupported_format", "JPEG XL; save it as JPEG or PNG")
    return Rejected("not_an_image", f"begins with {data[:8]!r}")


def _is_heic(data: bytes) -> bool:
    """Returns whether a file begins as a HEIF container whose brands name an image in HEVC."""
    brands = data[8 : min(int.from_bytes(data[:4], "big"), 64)]
    return data[4:8] == b"ftyp" and any(
        brands[offset : offset + 4] in _HEIC_BRANDS for offset in range(0, len(brands), 4)
    )


@contextlib.contextmanager
def _damage_of(image: Image.Image) -> Iterator[None]:
    """Converts exceptions of Pillow at damage (OSError, SyntaxError, IndexError, struct.error, …) to Rejected."""
    try:
        yield
    except (Rejected, MemoryError):  # MemoryError says nothing about the image, which may be good
        raise
    except Exception as error:
        raise _damaged(image.format, error) from error


_RAW_FILE = "a camera's raw file; export it as JPEG"
_RAW_BEGINS = (b"IIRO", b"IIRS", b"MMOR", b"IIU\0", b"FUJIFILMCCD-RAW")  # of Olympus, Panasonic and Fujifilm
_DNG_VERSION = 50706  # the tag that each DNG has
_UNKNOWN_BANDS = "unknown pixel mode"  # as Pillow says of a TIFF that is sound


def _damaged(kind: str | None, error: Exception) -> Rejected:
    message = str(error) or type(error).__name__
    if message == _UNKNOWN_BANDS:
        return Rejected("unsupported_format", f"{kind} with bands, bits or a byte order that Pillow does not read")
    reason = "truncated" if "truncated" in message.lower() else "corrupt"
    return Rejected(reason, f"{kind}: {message}")


@contextlib.contextmanager
def _one_large_at_a_time(num_bytes: int) -> Iterator[None]:
    """Holds a lock of all the user's threads and processes on this machine while an image of many bytes is decoded."""
    if num_bytes <= _LARGE_BYTES:
        yield
        return
    with _large_images, contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # without a folder of one's own, the lock covers this process only
            folder = f"{tempfile.gettempdir()}/jpeg2tpu-{os.getuid()}"
            if make_private(folder):
                file = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, file)  # closing releases the lock, as does the end of the process
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _peak_bytes(image: Image.Image, data: bytes, scale: Scale) -> int:
    """Returns the approximate memory in bytes for decoding an image, in addition to its file."""
    pixels = image.width * image.height
    if image.format not in _JPEG:
        return pixels * DECODER_BYTES.get(image.format or "", 10)
    coefficients = 2 * len(image.getbands()) if num_scans(data) > 1 else 0  # held until the last scan
    return pixels * coefficients + int(8 * pixels // scale**2)


def _check_kind(image: Image.Image, data: bytes) -> None:
    """Raises Rejected for an image that can be decoded, but not shown as one picture."""
    if image.format in _JPEG:
        return
    if image.format == "TIFF" and _is_raw(image.tag_v2, data):  # type: ignore[attr-defined]
        raise Rejected("unsupported_format", _RAW_FILE)
    if getattr(image, "is_animated", False):
        raise Rejected("animated", f"{image.format} with {getattr(image, 'n_frames', 0)} frames")
    if has_unknown_range(image):
        raise Rejected("unknown_range", f"{image.format} with mode {image.mode}")


def _is_raw(tags: Mapping[int, Any], data: bytes) -> bool:
    """Returns whether a TIFF is a raw file, such as DNG, NEF, ARW and CR2: what Pillow reads of them is a thumbnail.

    TIFF 6.0, NewSubfileType and SubfileType: the picture is a smaller version of another one in the file.
    """
    is_smaller_version = tags.get(254, 0) & 1 or tags.get(255) == 2
    return bool(is_smaller_version or _DNG_VERSION in tags or data[8:10] == b"CR")


def _fixes(image: Image.Image, data: bytes, options: ImageOptions) -> list[str]:
    """Returns why an image cannot be stored as it is."""
    has_other_colors = options.color_profiles == "convert" and color_profiles.effect(image) == "converted"
    profile = ["color profile"] if has_other_colors else []
    if _is_stored_as_png(image, data, options) and image.format == "PNG":
        return _fixes_of_png(image, data, options) + profile
    if image.format not in _JPEG:
        return [f"format {image.format}", *profile]
    reasons = [] if image.mode in STORED_MODES else [f"mode {image.mode}"]
    if orientation_transpose(image) is not None:
        reasons.append("orientation")
    if not is_decoded(data):
        reasons.append("lossless JPEG")
    reasons += profile
    if options.reencode == "all" and not reasons:
        reasons.append("--reencode=all")
    return reasons


def _is_stored_as_png(image: Image.Image, data: bytes, options: ImageOptions) -> bool:
    is_lossless = image.format in _LOSSLESS or (image.format == "WEBP" and data[12:16] == b"VP8L")
    return options.lossless and is_lossless


def _fixes_of_png(image: Image.Image, data: bytes, options: ImageOptions) -> list[str]:
    """Returns why a PNG cannot be stored as it is, but its color profile."""
    is_plain = image.mode in STORED_MODES and "transparency" not in image.info and data[24:25] == b"\x08"
    reasons = [] if is_plain else [f"mode {image.mode} of PNG"]
    if orientation_transpose(image) is not None:
        reasons.append("orientation")
    if not data.endswith(_PNG_END):
        reasons.append("PNG with bytes behind its end")
    if options.reencode == "all" and not reasons:
        reasons.append("--reencode=all")
    return reasons


def _notes(image: Image.Image, options: ImageOptions, keeps_bytes: bool) -> tuple[str, ...]:
    """Returns the findings about an image that are counted in addition to the reasons for re-encoding it."""
    effect = color_profiles.effect(image)
    keeps_bytes = keeps_bytes and not _is_larger(min(image.size), options)
    return (
        *([GPS_POSITION] if keeps_bytes and _has_position(image) else []),
        *([UNUSABLE_PROFILE] if effect == "unusable" else []),
        *([IGNORED_PROFILE] if effect == "converted" and options.color_profiles == "ignore" else []),
        *(_size_notes(min(image.size), options) if keeps_bytes else ()),
    )


def _has_position(image: Image.Image) -> bool:
    """Returns whether a JPEG contains a GPS position: in its EXIF or, as written by editors, in its XMP."""
    if b"GPSLatitude" in image.info.get("xmp", b""):
        return True
    try:
        exif = image.getexif()
        return ExifTags.IFD.GPSInfo in exif and ExifTags.GPS.GPSLatitude in exif.get_ifd(ExifTags.IFD.GPSInfo)
    except MemoryError:
        raise
    except Exception:  # damaged EXIF causes exceptions of many types
        return False


def _is_larger(shorter: int, options: ImageOptions, keeps_bytes: bool = True) -> bool:
    """Returns whether an image is made smaller; without `keeps_bytes` it is encoded anyway, and gets the exact size."""
    return 0 < options.resize_shorter * (MOST_LARGER if keeps_bytes else 1) < shorter


def _size_notes(shorter: int, options: ImageOptions) -> tuple[str, ...]:
    """Returns SLIGHTLY_LARGER if an image whose bytes are stored has a side of more than --resize_shorter pixels."""
    return (SLIGHTLY_LARGER,) if 0 < options.resize_shorter < shorter else ()


def _shrunk(image: Image.Image, shorter: int, full_size: tuple[int, int] | None = None) -> Image.Image:
    """Returns the image, resized to a shorter side of `shorter` pixels if it is larger; unchanged if `shorter` is 0.

    `full_size` is the width and height of the JPEG, if its pixels were decoded at some eighths of them. libjpeg rounds
    sizes up, so that a part of the last pixels lies outside the picture. Without regard to that, the picture would be
    shifted by up to a pixel of `image`, which changes the pixels more than decoding at a reduced scale does.
    """
    full_size = full_size or image.size
    scale = shorter / min(full_size)
    if not 0 < scale < 1:
        return image
    size = (max(round(full_size[0] * scale), 1), max(round(full_size[1] * scale), 1))
    inside = [full * (8 * side // full) / 8 for full, side in zip(full_size, image.size, strict=True)]
    return image.resize(size, Image.Resampling.BICUBIC, box=(0, 0, inside[0], inside[1]))


def _encode(image: Image.Image, quality: int) -> tuple[Image.Image, bytes]:
    """Returns the image and its JPEG file, for quality 0 its PNG file, which contains pixels only, without metadata."""
    if max(image.size) > _MAX_SIDE:
        raise Rejected("too_large", f"{image.width} x {image.height} pixels; a JPEG has at most {_MAX_SIDE} per side")
    buffer = io.BytesIO()
    if quality:
        image.save(buffer, "JPEG", quality=quality, comment=b"")
    else:
        Image.frombytes(image.mode, image.size, image.tobytes()).save(buffer, "PNG")  # without what Pillow passes on
    return image, buffer.getvalue()


def _moments_scale(width: int, height: int) -> int:
    """Returns the factor by which the image can be reduced and still be as large as the images that trainers crop.

    Trainers see no finer detail either. An image of 12 megapixels takes a quarter of the CPU time. On the images of
    benchmarks/corpus.py, the mean changes by less than 0.1 of 255 gray levels, and the deviation by less than 0.5, as
    noise is averaged out.
    """
    return next((scale for scale in (8, 4, 2) if min(width, height) >= MEASURED_SIDE * scale), 1)


def _moments(image: Image.Image) -> list[list[int]]:
    """Returns [sums, sums of squares] of red, green and blue over SAMPLE_SIDE x SAMPLE_SIDE pixels."""
    sample = image.resize((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.NEAREST).convert("RGB")
    histogram = np.array(sample.histogram(), np.int64).reshape(3, 256)
    moments: list[list[int]] = (histogram @ _POWERS).T.tolist()
    return moments


def _hash_scale(width: int, height: int) -> int:
    """Returns the factor by which an image can be reduced and still have 3 x 3 pixels for each area of its hash."""
    return next((scale for scale in (8, 4, 2) if width >= 27 * scale and height >= 24 * scale), 1)


def perceptual_hash(image: Image.Image) -> int:
    """Returns the perceptual hash of an image as a signed 64-bit integer, one bit for each of 8 x 8 areas.

    A bit is set if the area is brighter than its left neighbor. This is the "dHash" of N. Krawetz, "Kind of Like
    That", hackerfactor.com, 2013. The hash of an image decoded at the hash's scale differs from the full size's in a
    few bits at most.
    """
    scale = _hash_scale(*image.size)
    small = (image.reduce(scale) if scale > 1 else image).convert("L")
    # tobytes() takes half of the time of np.asarray(), which is a twentieth of the time of checking a small image.
    grey = np.frombuffer(small.resize((9, 8), Image.Resampling.BOX).tobytes(), np.uint8).reshape(8, 9)
    return int.from_bytes(np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes(), "big", signed=True)
