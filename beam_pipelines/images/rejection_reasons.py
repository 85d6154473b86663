"""Reason codes of rejected.jsonl: why an input is in no shard, and what to do about it. The codes are stable.

A test compares this table with the codes that the package uses.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """One reason code.

    Attributes:
      meaning: The problem with the input.
      advice: What the user can do about it.
    """

    meaning: str
    advice: str


# In the order of the checks: the line or the location, the file, the image, other inputs with the same bytes.
REASONS = {
    "bad_line": Reason(
        "A line of the list names no image, has more fields than there are columns, is no JSON, or is not UTF-8.",
        "Mend the line: image,label[,split][,group]; save the list as UTF-8.",
    ),
    "no_label": Reason(
        "Nothing says which class it is: it lies in no class folder, or its line has an empty label.",
        "Move it into the folder of its class, fill in the label, or leave it out.",
    ),
    "no_class": Reason(
        "It lies in a folder that holds no image, going by the names of its files, so that folder is no class; it does "
        "not count against --max_rejected.",
        "Nothing; or rename the files, if they are images.",
    ),
    "hidden": Reason(
        "It lies in a folder whose name begins with a dot, as editors and version control make them, which is no "
        "class; it does not count against --max_rejected.",
        "Nothing; or rename the folder, if it is a class.",
    ),
    "unknown_label": Reason(
        "Its class is not among those that --labels names.", "Add the class to that file, or correct the label."
    ),
    "bad_split": Reason(
        "The list gives it a split whose name cannot be part of a file name.",
        "Name splits with up to 64 letters, digits and _.",
    ),
    "conflicting_split": Reason(
        "Inputs of its group are given different splits, so some would be learned from and others tested on.",
        "Give all inputs of a group the same split, or none; check that group names are not used twice.",
    ),
    "bad_name": Reason("The file's name is not UTF-8, so no record can name it.", "Rename the file."),
    "bad_member": Reason(
        "A member of an archive has a name that leads out of the archive, or no bytes of its own there: a sparse file, "
        "a device or a pipe.",
        "Pack it again as a plain file, from the folder above the class folders.",
    ),
    "system_file": Reason(
        "A file manager of macOS or Windows has put it there; it does not count against --max_rejected.", "Nothing."
    ),
    "duplicate_key": Reason(
        "The same file is listed twice; the first good line counts, or an archive's last member of that name.",
        "Remove the repeated line; check that both lines gave the same label.",
    ),
    "missing": Reason(
        "There is no file of this name.",
        "Correct the path, which is relative to the list's own folder, or bring the file back.",
    ),
    "unreadable": Reason(
        "The file is there, but reading it failed.", "Check permissions and the disk, then convert again."
    ),
    "empty": Reason("The file has 0 bytes.", "Download or copy it again."),
    "not_an_image": Reason(
        "Its first bytes are those of no format that is read: JPEG, PNG, WebP, GIF, BMP, TIFF, PNM; often an error "
        "page saved as .jpg.",
        "Download it again, save it in one of these formats, or leave it out.",
    ),
    "truncated": Reason("The file ends in the middle of the image.", "Download or copy it again."),
    "corrupt": Reason(
        "The file is damaged inside or of a kind that Pillow does not decode, as the detail says; or libjpeg warns "
        "that what it decodes of a JPEG is not the image.",
        "Restore it from a copy, or save it again.",
    ),
    "too_large": Reason(
        "It has more pixels than --max_pixels allows to decode (of WebP and CMYK half as many), a side of more than a "
        "JPEG's 65,500, a file of more than 2 GiB, or needs more bytes than a shard holds.",
        "Raise --max_pixels if there is memory for it, 12 bytes for each pixel; raise --shard_size; or make the image "
        "smaller.",
    ),
    "too_slow": Reason(
        "A JPEG of so many scans that decoding it, in training each time it is seen, takes longer than 40 scans of as "
        "many pixels as --max_pixels allows.",
        "Save it again as a baseline JPEG, or raise --max_pixels.",
    ),
    "too_small": Reason("Its shorter side is below --min_side.", "Lower --min_side, or find a larger version."),
    "animated": Reason(
        "It holds several frames, and nothing says which one is meant.", "Save the frame that you mean."
    ),
    "unknown_range": Reason(
        "Its pixels are no 8-bit or 16-bit whole numbers but floating point, 32-bit and the like, and nothing says "
        "which of them are black and white.",
        "Scale its values to 8 or 16 bits and save it again.",
    ),
    "duplicate": Reason(
        "Another input has the same bytes and the same label; --dedup=exact keeps one of them.",
        "Nothing: this is what --dedup=exact is for, and it does not count against --max_rejected.",
    ),
    "conflicting_label": Reason(
        "The same bytes occur under two labels, so at least one is wrong; --dedup=exact takes none of them.",
        "Decide on the right label and delete the others.",
    ),
}
