"""Decodes Python source as Python itself does, by its byte order mark or its coding comment (PEP 263)."""

from __future__ import annotations

import codecs
import io
import tokenize

from ddpdoctor.light_dataclass import dataclass

__all__ = ["Decoded", "decode", "encoding_of"]

_WIDE = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
"""Byte order marks of encodings that Python does not accept for source; the longer mark first."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The text, and why Python would reject the bytes (None: it would not), with the line."""

    text: str
    trouble: str | None = None
    line: int = 1


def decode(data: bytes) -> Decoded:
    """The text of a source file with "\\n" line ends. Unreadable bytes are decoded as far as possible, with the reason."""
    wide = next((name for mark, name in _WIDE if data.startswith(mark)), None)
    if wide is not None:
        return Decoded(_lines(data.decode(wide, "replace")), f"it is {wide.upper()}, and Python reads UTF-8")
    if b"\0" in data:
        return Decoded(
            _lines(data.decode("utf-8", "replace")), "it holds null bytes", data[: data.index(b"\0")].count(b"\n") + 1
        )
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        if not str(error.msg).startswith("invalid or missing"):
            return Decoded(_lines(data.decode("utf-8", "replace")), str(error.msg))
        encoding = "utf-8"  # invalid UTF-8 in the first two lines: reported with its line below
    try:
        return Decoded(_lines(data.decode(encoding)))
    except LookupError:  # such as rot13, which is a codec but not a text encoding
        return Decoded(_lines(data.decode("utf-8", "replace")), f"{encoding} is no encoding of text")
    except UnicodeDecodeError as error:
        return Decoded(_lines(data.decode("latin-1")), _undecodable(data, error), _line_of(data, error.start))
    except UnicodeError:  # punycode, idna and undefined fail as a whole, without a place
        return Decoded(
            _lines(data.decode("utf-8", "replace")), f"it cannot be decoded as {encoding}, which it declares"
        )


def encoding_of(data: bytes) -> str:
    """The encoding of source that `decode` could read; a byte order mark stays in the text.

    Raises:
        ValueError: Python cannot read such source.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise ValueError(str(error.msg)) from None
    return encoding.removesuffix("-sig")


def _undecodable(data: bytes, error: UnicodeDecodeError) -> str:
    byte = data[error.start]
    if error.encoding.replace("_", "-") in ("utf-8", "utf-8-sig"):
        return f"byte 0x{byte:02x} is no UTF-8, and no encoding is declared"
    return f"byte 0x{byte:02x} is no {error.encoding}, the encoding that is declared"


def _line_of(data: bytes, at: int) -> int:
    return data.count(b"\n", 0, at) + 1


def _lines(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
