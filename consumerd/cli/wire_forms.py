"""The forms of input of `consumerd wire decode`: frames with or without their size or header.

Strategy: try what the bytes can be, the most complete form first. A form counts if all bytes can be read as it; if none
can, the error of the most complete one is the one to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import click

from consumerd.wire.errors import FrameError

Form = Literal["frame", "message", "body"]


class Decoded(NamedTuple):
    """The decoded value, for JSON, and the encoder to the same form."""

    value: dict[str, Any]
    encode: Callable[[], bytes]


#: Reads the bytes of a form; of a frame, those after its size. Raises FrameError.
Decoder = Callable[[Form, bytes], Decoded]


def decode_form(data: bytes, form: str, decoder: Decoder, *, only_frames: bool = False) -> tuple[Form, Decoded]:
    """Read `data` in `form`, or for "auto" in the first that fits; gives the form, too.

    `only_frames`: for "auto", nothing but a frame fits, because nearly any bytes could be a message. Raises FrameError.
    """
    sized = len(data) >= 4 and int.from_bytes(data[:4], signed=True) == len(data) - 4
    if not sized and (form == "frame" or (form == "auto" and only_frames)):
        raise FrameError(f"{len(data)} bytes are not a frame: their first four must be the number of those that follow")
    forms: tuple[Form, ...] = ("frame", "message") if sized else ("message", "body")
    if only_frames:
        forms = ("frame",)
    if form != "auto":
        forms = (cast("Form", form),)
    errors = []
    for candidate in forms:
        try:
            return candidate, decoder(candidate, data[4:] if candidate == "frame" else data)
        except FrameError as error:
            errors.append(error)
    raise errors[0]


def number_of(option: str, text: str, names: Mapping[str, int]) -> int:
    """The number that `text` is or names. `names`: lower case, letters and digits alone. Raises UsageError."""
    plain = "".join(filter(str.isalnum, text)).lower()
    number = int(text) if text.isascii() and text.isdigit() else names.get(plain)
    if number is None or number not in names.values():
        known = ", ".join(f"{value} {name}" for name, value in names.items())
        raise click.UsageError(f"{option} {text} is not known; these are: {known}")
    return number
