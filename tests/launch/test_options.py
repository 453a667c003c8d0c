"""Our reading of torchrun's words against argparse and torch's own parser."""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import FULL
from hypothesis import given
from hypothesis import strategies as st
from launches import lint

from ddpdoctor.collectors.launch import collect_launch
from ddpdoctor.collectors.launch_torch import find_torch, option_table
from ddpdoctor.facts.launch.reading import ParseProblemKind, Reading
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.facts.torchrun_options import NEWEST, Option, torchrun_options, version_of
from ddpdoctor.findings import Severity
from ddpdoctor.launch.option_parser import read
from ddpdoctor.system.machine import Machine, this_machine

LINES = 20_000 if FULL else 2_000
INSTALLED = version_of(metadata.version("torch")) or NEWEST
OPTIONS = torchrun_options(INSTALLED)


def _words(texts: list[str]) -> list[Word]:
    words, at = [], 0
    for text in texts:
        words.append(Word(text, text, at, at + len(text)))
        at += len(text) + 1
    return words


def _read(*texts: str, version: tuple[int, int] = NEWEST) -> Reading:
    return read(_words(list(texts)), torchrun_options(version))


class _Refused(Exception):
    pass


def _torch_parser() -> ArgumentParser:
    from torch.distributed.run import get_args_parser

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise _Refused(message)

    parser = get_args_parser()
    parser.__class__ = Parser
    return parser


VALUES = ["1", "2", "", "gpu", "-1", "c10d", "0:1", "a b", "x=y", "-", "3.5", "spawn", "node", "train.py", "--", "é"]


def _option(dice: random.Random) -> list[str]:
    option = dice.choice(OPTIONS)
    flag = dice.choice(option.flags)
    if dice.random() < 0.15:
        flag = flag[: dice.randint(2, len(flag))]
    value = dice.choice(VALUES)
    if option.kind == "flag" and dice.random() < 0.8:
        return [flag]
    if dice.random() < 0.5 and value != "--":  # before 3.12.8 argparse drops the value of --option=--
        return [f"{flag}={value}"]
    if dice.random() < 0.2 and len(flag) == 2 and not value.startswith("-"):
        return [flag + value]
    return [flag, value]


def _line(dice: random.Random) -> list[str]:
    words: list[str] = []
    for _ in range(dice.randint(0, 4)):
        words += _option(dice)
    if dice.random() < 0.15:
        words.append("--")
    if dice.random() < 0.9:
        words.append("train.py")
    for _ in range(dice.randint(0, 2)):
        words += dice.choice([["--lr", "1"], ["--"], ["x"], _option(dice)])
    return words


def _value(reading: Reading, option: Option) -> Any:
    found = reading.last(option.dest)
    if option.kind == "flag":
        return found is not None
    text = option.default if found is None else found.value
    if option.kind == "list":
        return [] if text is None else [p.replace("\1", ",") for p in text.replace(",,", "\1").split(",")]
    convert = {"int": int, "float": float}.get(option.kind, str)
    return None if text is None else convert(text)


def _accepted(parser: ArgumentParser, texts: list[str]) -> Namespace | None:
    try:
        return parser.parse_args(texts)
    except _Refused:
        return None


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")
def test_our_reading_equals_torchs_own_parser() -> None:
    parser = _torch_parser()
    dice = random.Random(20261121)
    accepted = 0
    while accepted < LINES:
        texts = _line(dice)
        if any(t.startswith(("-h", "--h")) for t in texts):
            continue
        reading = read(_words(texts), OPTIONS)
        expected = _accepted(parser, texts)
        if expected is None:
            assert reading.problems, texts
            continue
        accepted += 1
        assert not reading.problems, (texts, reading.problems)
        assert reading.script is not None
        assert reading.script.text == expected.training_script, texts
        assert [w.text for w in reading.arguments] == expected.training_script_args, texts
        for option in OPTIONS:
            assert _value(reading, option) == getattr(expected, option.dest), (texts, option.dest)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")
def test_a_line_that_torchs_parser_refuses_is_an_error() -> None:
    parser = _torch_parser()
    dice = random.Random(20261122)
    refused = 0
    while refused < LINES // 20:
        texts = _line(dice)
        if any(t.startswith(("-h", "--h")) for t in texts) or _accepted(parser, texts) is not None:
            continue
        refused += 1
        report = lint(argv=["torchrun", *texts])
        assert any(f.worst is Severity.ERROR for f in report.findings), texts


@pytest.mark.torch
def test_our_table_is_the_installed_torchs_own() -> None:
    found = find_torch(this_machine())
    assert found is not None
    version = version_of(found[0])
    assert version is not None
    theirs = option_table(str(Path(found[1]) / "distributed" / "run.py"))
    ours = {o.dest: o for o in torchrun_options(min(version, NEWEST))}
    assert set(theirs) == set(ours)
    for dest, option in ours.items():
        assert (option.flags, option.kind, option.from_env) == (
            theirs[dest].flags,
            theirs[dest].kind,
            theirs[dest].from_env,
        ), dest
        if option.kind not in ("flag", "list"):
            assert option.default == theirs[dest].default, dest


@pytest.mark.torch
def test_a_torch_newer_than_our_table_is_read_from_its_own_source(tmp_path: Path) -> None:
    found = find_torch(this_machine())
    assert found is not None
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "torch"
    (package / "distributed").mkdir(parents=True)
    (package / "version.py").write_text("__version__ = '3.7.0'\n")
    text = (Path(found[1]) / "distributed" / "run.py").read_text()
    at = text.index("    parser.add_argument(")
    new = '    parser.add_argument("--shape", action=env, type=str, choices=["ring", "tree"], default="ring")\n'
    (package / "distributed" / "run.py").write_text(text[:at] + new + text[at:])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    machine = Machine(environ={"PATH": str(tmp_path / "bin")})
    launch = collect_launch(machine, ["torchrun --shape=ring --nproc_per_node=2 a.py"])
    assert (launch.torch, launch.torch_from) == ("3.7.0", "source")
    agent, plan = launch.lines[0].agent, launch.lines[0].plan
    assert agent is not None
    assert not agent.is_garbled
    assert plan is not None
    assert (plan.settings["shape"].value, plan.nproc) == ("ring", 2)
    (wrong,) = collect_launch(machine, ["torchrun --shape=star a.py"]).lines
    assert wrong.agent is not None
    assert [p.trouble for p in wrong.agent.reading.problems] == [ParseProblemKind.INVALID_CHOICE]


def test_older_torchs_know_fewer_options_and_spellings() -> None:
    assert "--nproc-per-node" not in {f for o in torchrun_options((1, 13)) for f in o.flags}
    assert {o.dest for o in torchrun_options((2, 2))} & {"local_ranks_filter", "logs_specs"} == set()
    assert next(o for o in torchrun_options((2, 11)) if o.dest == "master_port").default == "29500"


@pytest.mark.parametrize(
    ("texts", "trouble"),
    [
        (["--nproc=2", "a.py"], ParseProblemKind.AMBIGUOUS),
        (["--nope", "a.py"], ParseProblemKind.UNRECOGNIZED),
        (["-master_port=1", "a.py"], ParseProblemKind.IGNORED_VALUE),
        (["--nproc_per_node"], ParseProblemKind.EXPECTED_VALUE),
        (["--standalone=1", "a.py"], ParseProblemKind.IGNORED_VALUE),
        (["--node_rank=x", "a.py"], ParseProblemKind.INVALID_VALUE),
        (["--start_method=x", "a.py"], ParseProblemKind.INVALID_CHOICE),
        ([], ParseProblemKind.NO_SCRIPT),
    ],
)
def test_the_parsers_errors_have_names(texts: list[str], trouble: ParseProblemKind) -> None:
    assert trouble in {p.trouble for p in _read(*texts).problems}


def test_the_last_of_a_repeated_option_wins_across_spellings() -> None:
    found = _read("--nproc_per_node=1", "--nproc-per-node=2", "a.py").last("nproc_per_node")
    assert found is not None
    assert found.value == "2"


def test_an_unknown_word_leaves_the_reading_open() -> None:
    words = [Word("\0", "$ARGS", 0, 5, splits=True), Word("a.py", "a.py", 6, 10)]
    reading = read(words, OPTIONS)
    assert reading.is_open
    assert reading.script is words[1]


def _pieces() -> Iterator[str]:
    for option in OPTIONS:
        yield from option.flags


@given(
    st.lists(st.one_of(st.sampled_from(list(_pieces())), st.text(max_size=12), st.sampled_from(VALUES)), max_size=12)
)
def test_no_words_break_the_reader(texts: list[str]) -> None:
    reading = read(_words(texts), OPTIONS)
    assert reading.is_help or reading.script is not None or reading.problems or reading.is_open
