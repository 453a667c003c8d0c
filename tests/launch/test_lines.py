"""Shell text, layers and plans of launch lines."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launches import LEGAL, WRONG

from ddpdoctor.facts.codec import decode, encode
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, SpanEdit, apply, quote
from ddpdoctor.launch.line import line_of_argv, line_of_text
from ddpdoctor.launch.shell.words import simple_commands

LINES = [case.text for case in (*LEGAL, *WRONG)]


def _line(text: str) -> LaunchLine:
    return line_of_text(text, {}, (2, 13), "/job")


def test_words_are_what_a_shell_would_pass() -> None:
    text = """a 'b c' "d \\"e\\" \\$f" g\\ h --x='1 2'3 '' # not this"""
    (command,) = simple_commands(text)
    assert [w.text for w in command.words] == ["a", "b c", 'd "e" $f', "g h", "--x=1 23", ""]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), min_size=1, max_size=6))
def test_quoted_words_come_back(texts: list[str]) -> None:
    (command,) = simple_commands(
        " ".join(["run", *map(quote, texts)])
    )  # as a command's first word `else` is none of its words
    assert [w.text for w in command.words] == ["run", *texts]


@given(st.text("ab '\"\\$(){}`;&|<>#\n=-", max_size=30))
def test_no_text_breaks_the_splitter(text: str) -> None:
    line = _line(text)
    for word in line.argv:
        assert 0 <= word.start <= word.end <= len(text)


@pytest.mark.parametrize("text", ["a 'b'\"c\" d", "x=1 y \\\n z", 'p "q r"s'])
def test_words_are_what_bash_passes(text: str) -> None:
    out = subprocess.run(
        ["bash", "-c", f"set -- {text}; printf '%s\\0' \"$@\""], capture_output=True, text=True, timeout=10, check=True
    )
    assert [w.text for c in simple_commands(text) for w in c.words] == out.stdout.split("\0")[:-1]


def test_every_word_stands_where_it_says() -> None:
    for text in LINES:
        line = _line(text)
        for layer in line.layers:
            for word in (*layer.own, *layer.reading.arguments):
                if word.is_literal and UNKNOWN not in word.text and word.raw:
                    assert text[word.start : word.end] == word.raw, text


def test_a_launch_survives_json() -> None:
    for text in LINES[::7]:
        launch = Launch(lines=(_line(text),))
        assert decode(Launch, encode(launch)) == launch


@pytest.mark.parametrize(
    ("text", "launchers"),
    [
        ("env A=b nohup torchrun a.py", ["wrapper", "wrapper", "torchrun"]),
        ("srun -N2 bash -c 'torchrun a.py'", ["srun", "shell", "torchrun"]),
        ("docker run --rm -it img torchrun a.py", ["container", "torchrun"]),
        ("docker run --new-option x img torchrun a.py", ["container", "torchrun"]),
        ("mpirun -np 2 --mca btl tcp torchrun a.py", ["mpirun", "torchrun"]),
        ("uv run --with x accelerate launch a.py", ["wrapper", "accelerate"]),
        ("python -Xdev -m torch.distributed.launch a.py", ["torch.distributed.launch"]),
        ("torchrun --no-python torchrun a.py", ["torchrun", "torchrun"]),
        ("ssh h 'cd /x && torchrun a.py'", ["wrapper", "torchrun"]),
        ("$LAUNCHER torchrun a.py", ["other", "torchrun"]),
        ("jsrun -n 2 python a.py", ["jsrun", "python"]),
        ("ray job submit -- python a.py", ["ray", "python"]),
    ],
)
def test_layers(text: str, launchers: list[str]) -> None:
    assert [layer.launcher.value for layer in _line(text).layers] == launchers


def test_variables_of_the_line_and_of_its_wrappers_reach_the_launcher() -> None:
    line = line_of_text("A=1 env -u B C=2 docker run -e D=3 img torchrun a.py", {"B": "0"}, (2, 13), "/")
    assert line.environ.variables == {"D": "3"}
    line = line_of_text("export E=5; A=1 env -u B C=2 torchrun a.py", {"B": "0", "F": "6"}, (2, 13), "/")
    assert line.environ.variables == {"A": "1", "C": "2", "E": "5", "F": "6"}


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("torchrun a.py", (2, 13), ("c10d", "localhost", None, True)),
        ("torchrun a.py", (2, 11), ("static", "127.0.0.1", 29500, False)),
        ("torchrun --master_port=1234 a.py", (2, 13), ("static", "127.0.0.1", 1234, False)),
        ("torchrun --nnodes=2 --master_addr=h a.py", (2, 13), ("static", "h", 29500, False)),
        ("torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=h a.py", (2, 13), ("c10d", "h", 29400, False)),
        ("torchrun --standalone --nnodes=2 a.py", (2, 13), ("c10d", "localhost", None, False)),
        ("torchrun --nnodes=2 --rdzv_endpoint=[::1]:5 a.py", (2, 13), ("static", "::1", 5, False)),
        ("torchrun --nnodes=$N --master_addr=h a.py", (2, 13), ("static", "h", 29500, False)),
        ("PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=h:1 torchrun a.py", (2, 13), ("c10d", "h", 1, False)),
        ("torchrun $ARGS a.py", (2, 13), (None, None, None, False)),
    ],
)
def test_what_torchrun_will_do(text: str, version: tuple[int, int], expected: tuple[object, ...]) -> None:
    plan = line_of_text(text, {}, version, "/").plan
    assert plan is not None
    assert (plan.backend, plan.host, plan.port, plan.is_rewritten) == expected


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10), min_size=1, max_size=8))
def test_no_argv_breaks_the_line(argv: list[str]) -> None:
    line = line_of_argv(["torchrun", *argv], {}, (2, 13), "/nowhere")
    assert shlex.split(line.source) == ["torchrun", *argv]


def test_edits_may_not_overlap() -> None:
    assert apply("a b c", [SpanEdit(0, 1, "x"), SpanEdit(4, 5, "z")]) == "x b z"
    with pytest.raises(ValueError, match="overlap"):
        apply("abc", [SpanEdit(0, 2, "x"), SpanEdit(1, 3, "y")])


def test_the_launcher_inside_double_quotes_keeps_its_variables() -> None:
    line = _line('srun bash -c "torchrun --node_rank=$SLURM_NODEID a.py"')
    agent = line.agent
    assert agent is not None
    assert agent.launcher is LauncherKind.TORCHRUN
    given = agent.given("node_rank")
    assert given is not None
    assert given.word.raw == "--node_rank=$SLURM_NODEID"
    assert given.word.context == '"'
