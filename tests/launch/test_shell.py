"""Shell scripts: which lines are found, what is known of variables there, and that nothing makes the reader crash or hang."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cases import SITUATIONS
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.collectors.launch import LocalFiles
from ddpdoctor.collectors.launch_files import shell_error
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import plain
from ddpdoctor.launch.sbatch import batch_layer
from ddpdoctor.launch.shell.reader import lines_of_shell
from ddpdoctor.launch.shell.text import ShellSource
from ddpdoctor.launch.shell.words import inner_text, simple_commands

LEGAL = sorted((SITUATIONS / "job_files").iterdir())


def _lines(text: str, **environ: str) -> tuple[LaunchLine, ...]:
    return lines_of_shell(ShellSource(text, "job.sh", environ, (2, 13)))


def _words(text: str) -> list[str]:
    (line,) = _lines(text)
    return [plain(w.text, "?") for w in line.argv]


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("N=8", "8"),
        ("export N='8'", "8"),
        ("M=8; N=$M", "8"),
        ("N=4\nN=8", "8"),
        ("readonly N=8", "8"),
        ("N=4; unset N", "?"),
        ("N=$(nvidia-smi -L | wc -l)", "?"),
        ("N=${N:-8}", "?"),
        ("N=4; [ -n $X ] && N=8", "?"),
        ("if true; then N=8; else N=4; fi", "?"),
        ("N=4; for N in 1 2; do :; done", "?"),
        ("N=4; read N", "?"),
        ("N=4; source settings.sh", "?"),
        ("N=8; source ~/.bashrc", "8"),
        ('N=8; eval "$x"', "?"),
        ("(N=8)", "?"),
        ("N=4; N+=8", "?"),
        ("f() { N=4; }; N=8", "8"),
        ("N=8 || exit", "8"),
    ],
)
def test_a_variable_is_known_only_where_every_way_gives_one_value(before: str, value: str) -> None:
    assert f"--nproc-per-node={value}" in _words(f"{before}\ntorchrun --nproc-per-node=$N train.py")


def test_functions_inside_of_functions_are_read() -> None:
    assert len(_lines("f() { g() { torchrun a.py; }; torchrun b.py; }; f")) == 2


def test_a_loop_changes_what_stands_before_it() -> None:
    assert "--nnodes=?" in _words("N=1\nwhile true; do torchrun --nnodes=$N train.py; N=2; done")


def test_a_list_of_words_in_a_variable_is_cut_and_keeps_what_is_unknown() -> None:
    text = 'ARGS="--nnodes $N --nproc-per-node 8"\ntorchrun $ARGS train.py'
    assert _words(text) == ["torchrun", "--nnodes", "?", "--nproc-per-node", "8", "train.py"]


def test_an_array_gives_its_words_as_they_are() -> None:
    text = 'A=(--nproc-per-node 8 # all\n  --nnodes "$N")\nA+=(--role "a b")\ntorchrun "${A[@]}" train.py'
    assert _words(text) == ["torchrun", "--nproc-per-node", "8", "--nnodes", "?", "--role", "a b", "train.py"]
    assert _words('A=(1)\nA[0]=2\ntorchrun "${A[@]}" train.py') == ["torchrun", "?", "train.py"]


@pytest.mark.parametrize("arguments", ['"$@"', '"${ARGS[@]}"', "${ARGS[*]}", "$ARGS"])
def test_unknown_words_leave_the_launcher_open(arguments: str) -> None:
    (line,) = _lines(f"torchrun {arguments} train.py")
    assert line.agent is not None
    assert line.agent.reading.is_open


def test_lines_know_their_places_quotes_and_pipes() -> None:
    (line,) = _lines("set -e\n\n  X=1 torchrun \\\n    --nproc-per-node=2 train.py 2>&1 | tee log &\n")
    assert (line.first_line, line.first_column, line.is_background) == (3, 3, True)
    assert line.source.endswith("| tee log")
    assert line.place(line.argv[2].start) == (4, 5)


@pytest.mark.parametrize(
    "text",
    [
        "echo torchrun train.py",
        "pip install torch accelerate",
        "srun hostname",
        "python -c 'print(1)'",
        "python -m pip list",
        "command -v torchrun",
        "cat <<EOF\ntorchrun train.py\nEOF",
        "# torchrun train.py",
        "x='torchrun train.py'",
    ],
)
def test_what_starts_no_job_is_no_line(text: str) -> None:
    assert _lines(text) == ()


def test_a_heredoc_for_a_shell_is_a_script_with_places_of_the_file() -> None:
    (line,) = _lines("cat > run.sh <<EOF\n#!/bin/bash\n  torchrun --node-rank=\\$RANK train.py\nEOF\n")
    assert line.place(line.argv[0].start) == (3, 3)
    assert [plain(w.text, "?") for w in line.argv] == ["torchrun", "--node-rank=?", "train.py"]


def test_sbatch_options_end_at_the_first_command() -> None:
    layer = batch_layer(
        "#!/bin/bash\n#SBATCH -N2 # two\n##SBATCH -N 9\n#SBATCH --gres=gpu:4\necho\n#SBATCH -N 5\n", (2, 13)
    )
    assert layer is not None
    assert [(g.flag, g.value) for g in layer.reading.given] == [("-N", "2"), ("--gres", "gpu:4")]


def test_only_a_script_that_bash_refuses_is_an_error() -> None:
    assert shell_error("a.sh", "if true; then\necho\n") is not None
    for path in LEGAL:
        assert shell_error(path.name, path.read_text()) is None


@given(st.text(alphabet="abc $\"'`(){}[]<>|&;\\\n=#!-01", max_size=200), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_random_and_mutated_scripts_never_crash(noise: str, where: int) -> None:
    text = LEGAL[where % len(LEGAL)].read_text()
    at = where % len(text)
    for script in (noise, text[:at] + noise + text[at:], text[:at]):
        for line in lines_of_shell(ShellSource(script, "x.sh", {}, (2, 13))):
            assert all(line.place(w.start) for w in line.argv)


@pytest.mark.parametrize(
    "text", ["(" * 5000, "if true; then " * 3000, "$(" * 3000, "{ " * 3000 + "torchrun x.py" + ";}" * 3000]
)
def test_deep_nesting_ends_soon(text: str) -> None:
    started = time.monotonic()
    lines_of_shell(ShellSource(text, "x.sh", {}, (2, 13)))
    assert time.monotonic() - started < 20


def test_a_relative_script_is_looked_for_here_and_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (line,) = lines_of_shell(
        ShellSource("torchrun train.py", "x.sh", {}, (2, 13), ("/nowhere", str(tmp_path)), files=LocalFiles())
    )
    assert line.script is not None
    assert line.script.exists
    (line,) = lines_of_shell(
        ShellSource('cd "$DIR"; torchrun train.py', "x.sh", {}, (2, 13), (str(tmp_path),), files=LocalFiles())
    )
    assert line.script is None


def test_a_backslash_at_the_end_of_a_quoted_word_is_no_character() -> None:
    ((_, _, word),) = (each.words for each in simple_commands("bash -c \"echo 'x'\"\\"))
    inner = inner_text(word)
    assert inner.text == "echo 'x'"
    assert len(inner.offsets) == len(inner.ends) == len(inner.text)
