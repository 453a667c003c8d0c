"""The table of settings: its rows, NCCL's own reading of numbers, and what misspelt names were meant to be."""

from __future__ import annotations

import ctypes
import re
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddpdoctor.facts.setting_names import SYNONYMS, nearest, of_a_plugin
from ddpdoctor.facts.settings_table import MAX_NUMBER, TABLE, read_number

KINDS = {"number", "truth", "word", "words", "exact", "level", "integer", "boolean", "path", "text"}
RELEASE = re.compile(r"\d+\.\d+(\.\d+)?")
NAMES = st.sampled_from(sorted(TABLE))
LETTERS = string.ascii_uppercase + "_"


@pytest.mark.parametrize("name", TABLE)
def test_a_row_is_well_formed(name: str) -> None:
    each = TABLE[name]
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+", name)
    assert each.kind in KINDS
    assert each.allowed or each.kind not in ("word", "words", "exact", "level")
    for release in (each.since, each.deprecated, each.removed):
        assert release in (None, "-") or RELEASE.fullmatch(release)
    assert each.replaced_by is None or each.replaced_by in TABLE, each.replaced_by
    assert not (each.removed and each.deprecated)
    assert not of_a_plugin(name) or name.endswith("_PLUGIN")


def test_every_family_is_there() -> None:
    count = {family: sum(each.family == family for each in TABLE.values()) for family in ("nccl", "torch", "cuda")}
    assert count["nccl"] > 250
    assert min(count.values()) > 25


def test_synonyms_are_no_names_of_the_table() -> None:
    assert not SYNONYMS.keys() & TABLE.keys()


@given(
    st.one_of(
        st.text("0123456789abcxX+- \t._e", max_size=30), st.integers(-(10**25), 10**25).map(str), st.text(max_size=8)
    )
)
def test_numbers_are_read_as_the_c_library_reads_them(text: str) -> None:
    assume("\0" not in text)
    strtoll = ctypes.CDLL(None).strtoll
    strtoll.restype = ctypes.c_longlong
    expected = strtoll(text.encode("utf-8", "replace"), None, 0)
    read, _ = read_number(text)
    if abs(read) < MAX_NUMBER:
        assert read == expected
    else:
        assert abs(expected) >= MAX_NUMBER


@pytest.mark.parametrize("text", ["true", "1abc", "4M", "010", "08", "1.5", "1e6", "", "0x", "9" * 30, "9" * 60000])
def test_what_is_no_number_is_told_from_a_number(text: str) -> None:
    assert not read_number(text)[1]


@pytest.mark.parametrize("text", ["0", "1", "-2", " 7", "7 ", "0x10", "00", "01", "+3"])
def test_numbers_are_numbers(text: str) -> None:
    assert read_number(text)[1]


def _edited(name: str, how: str, at: int, letter: str) -> str:
    at %= len(name)
    if how == "drop":
        return name[:at] + name[at + 1 :]
    if how == "add":
        return name[:at] + letter + name[at:]
    if how == "replace":
        return name[:at] + letter + name[at + 1 :]
    return name[:at] + name[at : at + 2][::-1] + name[at + 2 :]


@given(NAMES, st.sampled_from(["drop", "add", "replace", "swap"]), st.integers(0, 60), st.sampled_from(LETTERS))
def test_one_wrong_letter_is_forgiven(name: str, how: str, at: int, letter: str) -> None:
    wrong = _edited(name, how, at, letter)
    assume(wrong not in TABLE and not of_a_plugin(wrong))
    assert name in nearest(wrong)


@given(NAMES)
def test_small_letters_are_recognised(name: str) -> None:
    assert nearest(name.lower()) == (name,)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("NCCL_IB_TIMOUT", "NCCL_IB_TIMEOUT"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKET_IF_NAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_P2P_DISABEL", "NCCL_P2P_DISABLE"),
        ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("NCLL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_BUFFERSIZE", "NCCL_BUFFSIZE"),
        ("NCCL_NET_GDR_LVL", "NCCL_NET_GDR_LEVEL"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISIBLE_DEVCIES", "CUDA_VISIBLE_DEVICES"),
        ("TORCH_NCCL_ASYNC_ERR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("GLOO_SOCKET_IFNAMES", "GLOO_SOCKET_IFNAME"),
    ],
)
def test_common_slips_are_recognised(wrong: str, meant: str) -> None:
    assert nearest(wrong)[0] == meant


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "CUDA_PATH",
        "CUDA_VERSION",
        "CUDA_HOME",
        "HCCL_SOCKET_IFNAME",
        "RCCL_DEBUG",
        "CCL_ALGO",
        "NCCL_VERSION",
        "NCCL_FASTRAK_NUM_FLOWS",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "TORCH_LOGS",
        "NCCL_ZZZZZZZZZZ",
        "MASTER_ADDR",
        "NVIDIA_REQUIRE_CUDA",
    ],
)
def test_names_of_others_are_left_alone(name: str) -> None:
    assert nearest(name) == ()


@given(st.text(max_size=200))
def test_no_text_is_too_strange(text: str) -> None:
    assert len(nearest(text)) <= 3
    read_number(text)
    for each in list(TABLE.values())[::20]:
        each.allows(text)
