"""Decoding source as Python does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.scripts.source_text import decode

SOURCES = {
    "plain": b"x = 1\n",
    "a byte order mark": b"\xef\xbb\xbfx = 1\n",
    "latin-1, declared": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "declared on the second line": b"#!/usr/bin/env python\n# coding: cp1252\nx = '\x80'\n",
    "latin-1, not declared": b"x = 1\ny = '\xe9'\n",
    "declared as another": b"# coding: ascii\n\nx = '\xe9'\n",
    "an encoding that there is not": b"# coding: klingon\nx = 1\n",
    "a codec that is no encoding": b"# coding: rot13\nk = 1\n",
    "a mark that contradicts": b"\xef\xbb\xbf# coding: latin-1\nx = 1\n",
    "UTF-16": "x = 1\n".encode("utf-16"),
    "null bytes": b"x = 1\n\0\n",
    "old line ends": b"x = 1\rif x:\r    y = 2\r\n",
}


@pytest.mark.parametrize("data", SOURCES.values(), ids=SOURCES)
def test_bytes_are_refused_when_python_refuses_them(data: bytes) -> None:
    try:
        compile(data, "x.py", "exec")
    except (SyntaxError, ValueError):
        assert decode(data).trouble is not None
    else:
        decoded = decode(data)
        assert decoded.trouble is None
        assert compile(decoded.text, "x.py", "exec") is not None


def test_the_line_that_cannot_be_read_is_named() -> None:
    assert decode(SOURCES["latin-1, not declared"]).line == 2
    assert decode(SOURCES["null bytes"]).line == 2


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    decode(data)
