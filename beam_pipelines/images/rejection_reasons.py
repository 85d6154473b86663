"""Reason codes of rejected.jsonl: why an input is in no shard, and what to do about it. The codes are stable.

A test compares this table with the codes that the package uses.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Reason(NamedTuple):
    """One reason code.

    Attributes:
      meaning: The problem with the input.
      advice: What the user can do about it.
      counts: Whether it counts against --max_rejected: what --dedup removes and files that are not inputs do not.
    """

    meaning: str
    advice: str
    counts: bool = True


HTTP_STATUS = "http_NNN"  # stands for the codes http_404 and the like in REASONS
# In the order of the checks: the line or the location, the file, the image, other inputs with the same bytes.
REASONS = {
    "bad_line": Reason(
        "A line of the list does not name an image, has more fields than there are columns, is not a JSON object, or "
        "is not UTF-8.",
        "Correct the line: image,label, and perhaps split and group; save the list as UTF-8.",
    ),
    "no_label": Reason(
        "It has no label: it is not in a class folder, or its label is empty, or -1, which stands for none in many "
        "lists.",
        "Move it into the folder of its class, fill in the label, or leave it out.",
    ),
    "no_class": Reason(
        "It is in a folder without images, judging by the file names, so the folder is not a class; it does not count "
        "against --max_rejected.",
        "No action is needed; if the files are images, rename them.",
        counts=False,
    ),
    "hidden": Reason(
        "It is in a folder whose name begins with a dot, as created by editors and version control systems; such a "
        "folder is not a class. It does not count against --max_rejected.",
        "No action is needed; if the folder is a class, rename it.",
        counts=False,
    ),
    "unknown_label": Reason(
        "Its class is not listed in --labels.", "Add the class to that file, or correct the label."
    ),
    "bad_split": Reason(
        "The list gives it a split whose name cannot be part of a file name.",
        "Use split names of 1 to 64 letters, digits or _.",
    ),
    "conflicting_split": Reason(
        "Inputs of its group have different splits, so the model would be trained on some and tested on others.",
        "Give all inputs of a group the same split, or no split; check that no two groups have the same name.",
    ),
    "bad_name": Reason("The file name is not UTF-8, so it cannot be stored in a record.", "Rename the file."),
    "bad_member": Reason(
        "A member of an archive has a name that points outside the archive, or its bytes are not stored as a plain "
        "file: it is a sparse file, a device or a pipe.",
        "Pack it again as a plain file, from the folder above the class folders.",
    ),
    "bad_feature": Reason(
        "A value for --feature is missing, or has another type or number of values.",
        "Correct the value or the type; a missing float is NaN, a missing text is empty.",
    ),
    "bad_record": Reason(
        "A record of a TFRecord file is not a tf.train.Example, has no image in the feature that --record names, or "
        "has a text that is not UTF-8.",
        "Correct --record; or write the records again.",
    ),
    "system_file": Reason(
        "It was created by an operating system, a file server, a viewer or Git, such as .DS_Store and what is in "
        "@eaDir; it does not count against --max_rejected.",
        "No action is needed.",
        counts=False,
    ),
    "other_file": Reason(
        "Its name is not an image's, such as README.md, x.json and x.mov; it does not count against --max_rejected.",
        "No action is needed; if it is an image, rename it.",
        counts=False,
    ),
    "ignored": Reason(
        "The option --ignore names it; it does not count against --max_rejected.",
        "No action is needed.",
        counts=False,
    ),
    "duplicate_key": Reason(
        "The same file is listed more than once; the first valid line of a list is used, or the last member of that "
        "name in an archive.",
        "Remove the repeated line.",
    ),
    "missing": Reason(
        "The file does not exist.",
        "Correct the path, which is relative to the folder of the list, or restore the file.",
    ),
    "unreadable": Reason(
        "The file exists, but it cannot be read.", "Check permissions and the disk, then convert again."
    ),
    "bad_url": Reason(
        "Its URL, or one that a redirect leads to, names no host, has an invalid port, or is neither http:// nor "
        "https://.",
        "Correct the URL in the list.",
    ),
    "private_address": Reason(
        "The host of its URL, or of a redirect, has only addresses of this machine or of a private network.",
        "If you trust the whole list, add --allow_private_addresses; a list from a stranger could read internal "
        "servers with it.",
    ),
    "unreachable": Reason(
        "Its host has no address, refuses or closes the connection, or has an invalid certificate, also after retries.",
        "Check the URL; run the command again with --extend, which tries it again.",
    ),
    "timeout": Reason(
        "Its URL was not read completely within --url_timeout, also after retries.",
        "Raise --url_timeout, or run the command again with --extend, which tries it again.",
    ),
    "http_NNN": Reason(
        "The server answers with this status of HTTP, such as http_404 for a URL without a file, http_403 for one "
        "that needs permission, or http_503, also after retries.",
        "Correct or sign the URL; for http_429 and http_503, lower --url_host_concurrency and run the command again "
        "with --extend.",
    ),
    "too_many_redirects": Reason(
        "More than 5 redirects lead from its URL to others, perhaps in a circle.",
        "Name the URL of the image itself.",
    ),
    "bad_response": Reason(
        "What the server answers is not HTTP, ends before its length, or is compressed in a way that was not asked "
        "for.",
        "Check the URL; run the command again with --extend, which tries it again.",
    ),
    "robots": Reason(
        "The site refuses it by the header X-Robots-Tag: noai, noimageai, noindex or noimageindex.",
        "Leave it out; if you have the permission of its owner, add --ignore_robots.",
    ),
    "empty": Reason("The file has 0 bytes.", "Download or copy it again."),
    "not_an_image": Reason(
        "Its first bytes match no supported format: JPEG, PNG, WebP, AVIF, HEIC, JPEG 2000, GIF, "
        "BMP, TIFF, PNM; it is often an error page saved as .jpg.",
        "Download it again, save it in one of these formats, or leave it out.",
    ),
    "unsupported_format": Reason(
        "It is an image of a format that is not read, which the detail names: JPEG XL, HEIC without the extra heic, a "
        "camera's raw file (only its thumbnail could be read), or an unusual TIFF.",
        "Follow the detail: save the image as JPEG or PNG, or run pip install 'jpeg2tpu[heic]'.",
    ),
    "truncated": Reason("The file ends in the middle of the image.", "Download or copy it again."),
    "corrupt": Reason(
        "The file is corrupt or of a kind that Pillow cannot decode, see the detail; or libjpeg warns that the pixels "
        "that it decodes from a JPEG do not match the image.",
        "Restore it from a copy, or save it again.",
    ),
    "too_large": Reason(
        "It has more pixels than --max_pixels allows (half as many for WebP, AVIF, HEIC and CMYK, a third for JPEG "
        "2000), or a side of more than 65,500 pixels, the limit of JPEG. Or its file has more than 2 GiB, more "
        "bytes than a shard can hold, or, behind a URL, more than --url_max_size.",
        "Raise --max_pixels if there is enough memory, 12 bytes per pixel; raise --shard_size or --url_max_size; or "
        "scale the image down.",
    ),
    "too_slow": Reason(
        "It is a JPEG with so many scans that decoding it, which training does once per epoch, takes longer than "
        "decoding 40 scans of as many pixels as --max_pixels allows.",
        "Save it again as a baseline JPEG, or raise --max_pixels.",
    ),
    "too_small": Reason("Its shorter side is below --min_side.", "Lower --min_side, or find a larger version."),
    "animated": Reason(
        "It has several frames, and it is not known which one is meant.",
        "Save the intended frame as an image of its own.",
    ),
    "unknown_range": Reason(
        "Its pixel values are not 8-bit or 16-bit integers but, for example, floating-point or 32-bit numbers, so the "
        "values of black and white are not known.",
        "Scale its values to 8 or 16 bits and save it again.",
    ),
    "left_out": Reason(
        "The command that made the dataset of another one left out its key or its class; it does not count against "
        "--max_rejected.",
        "No action is needed.",
        counts=False,
    ),
    "duplicate": Reason(
        "Another input has the same label and the same bytes, or looks alike; --dedup=exact or near keeps one of them.",
        "No action is needed: --dedup removes duplicates; they do not count against --max_rejected.",
        counts=False,
    ),
    "conflicting_label": Reason(
        "The same file is listed with two labels, or with --dedup the same image occurs under two: at least one is "
        "wrong, so none is stored.",
        "Keep the image with the correct label and delete the others.",
    ),
}


_UNKNOWN = Reason("This version of jpeg2tpu does not know this reason.", "See the details.")


def explain(code: str) -> Reason:
    """Returns what a reason code means, also of a status of HTTP, or one that this version does not know."""
    return REASONS.get(code) or (REASONS[HTTP_STATUS] if re.fullmatch(r"http_\d{3}", code) else _UNKNOWN)
