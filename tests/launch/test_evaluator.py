"""Shell text executed for an imagined process: the same values as bash, within bounds, and nothing is run."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from bash_scripts import script
from conftest import FULL
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.execution_budget import Budget
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun
from ddpdoctor.launch.evaluator.launches import run_job_file
from ddpdoctor.launch.evaluator.machine import ImaginedMachine
from ddpdoctor.launch.evaluator.shell import Shell
from ddpdoctor.launch.evaluator.tools import TOOLS, host_names
from ddpdoctor.launch.evaluator.values import RANDOM, Origin, Value
from ddpdoctor.launch.evaluator.variables import Variables

BASH = shutil.which("bash")
COUNT = 20_000 if FULL else 400
VERSION = (2, 13)


def evaluated(text: str, arguments: Sequence[str] = ()) -> tuple[str, Shell]:
    """What a script prints in a shell whose variables are all known."""
    shell = Shell(ImaginedMachine("node-0", "10.0.0.1"), Budget(), Variables(is_closed=True))
    shell.positional = [Value(argument) for argument in arguments]
    shell.run(text, lambda start, end: Origin("", start, end))
    return "".join(value.text for value in shell.output), shell


def job(text: str) -> ImaginedRun:
    return run_job_file(text, "job.sh", {}, VERSION, "/job")


def commands(run: ImaginedRun) -> list[str]:
    return [" ".join(value.text for value in launched.argv) for launched in run.launched]


@pytest.mark.skipif(BASH is None, reason="bash is what it is compared with")
@pytest.mark.parametrize("part", range(8))
def test_scripts_have_the_values_that_bash_gives_them(part: int, tmp_path: Path) -> None:
    assert BASH is not None
    compared = 0
    for seed in range(part, COUNT, 8):
        text = script(seed)
        command = [BASH, "--norc", "--noprofile", "-c", text]
        env = {"PATH": "/nonexistent", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        real = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=20)
        if real.stderr.strip() or "bash" in real.stdout:  # bash refuses it, or it prints $0
            continue
        printed, _ = evaluated(text)
        assert printed == real.stdout or UNKNOWN in printed, text
        compared += UNKNOWN not in printed
    assert compared > COUNT / 8 * 0.6


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("x=1; (x=2); echo $x", "1\n"),
        ("f() { return 3; }; f || echo $?", "3\n"),
        ("for ((i = 0; i < 3; i++)); do printf '%s,' $i; done", "0,1,2,"),
        ('while read -r h; do echo "<$h>"; done <<EOF\na\nb c\nEOF', "<a>\n<b c>\n"),
        ("echo $(echo node[01-03] | sed 's/\\[.*//')", "node\n"),
        ("declare -A m=([a]=1 [b]=2); echo ${m[b]}", "2\n"),
        ("IFS=,; x=a,b,c; set -- $x; echo $# $2", "3 b\n"),
        ("x=$(printf '%s\\n' a b c | tail -n 1); echo $x", "c\n"),
        ("cat <<'EOF'\n$x\nEOF", "$x\n"),
        ("if [[ node12 =~ ^node[0-9]+$ ]]; then echo yes; fi", "yes\n"),
        ("echo $((7 << 2)) $((1<<-(-2)))", "28 4\n"),
        ("scontrol show hostnames 'gpu[1-2],cpu7' | paste -sd,", "gpu1,gpu2,cpu7\n"),
    ],
)
def test_it_prints(text: str, printed: str) -> None:
    assert evaluated(text)[0] == printed


def test_a_branch_on_something_unknown_is_taken_both_ways() -> None:
    run = job("if [ -f $DATA/done ]; then A=1; else A=2; fi\nexport A\nsrun python train.py $A\n")
    assert commands(run) == [f"python train.py {UNKNOWN}"]
    run = job("if [ -f $DATA/done ]; then srun python a.py; else srun python b.py; fi\n")
    assert [launched.is_certain for launched in run.launched] == [False, False]


def test_a_program_is_taken_to_succeed_where_the_script_goes_on() -> None:
    run = job("python prepare.py || exit 1\ntorchrun train.py\n")
    assert commands(run)[-1] == "torchrun train.py"
    assert run.launched[-1].is_certain


def test_slurm_gives_each_task_its_own_variables() -> None:
    run = job(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4\n"
        "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
        "srun bash -c 'torchrun --nnodes $SLURM_NNODES --node_rank $SLURM_NODEID --master_addr $MASTER_ADDR train.py'\n"
    )
    assert commands(run) == [f"torchrun --nnodes 2 --node_rank {node} --master_addr node-0 train.py" for node in (0, 1)]


def test_a_random_number_differs_per_process_and_says_so() -> None:
    run = job("#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1\nsrun bash -c 'torchrun --rdzv-id $RANDOM train.py'\n")
    ids = [launched.argv[2] for launched in run.launched]
    assert ids[0].text != ids[1].text
    assert all(RANDOM in value.varies for value in ids)
    run = job("#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1\nsrun torchrun --rdzv-id $RANDOM train.py\n")
    assert len({launched.argv[2].text for launched in run.launched}) == 1


def test_ssh_takes_no_variables_along_and_mpirun_those_of_x() -> None:
    run = job("export A=1 B=2\nssh gpu-07 'python train.py'\n")
    assert run.launched[0].place.host == "gpu-07"
    assert "A" not in run.launched[0].environ
    run = job("export A=1 B=2\nmpirun -H node-0:1,node-1:1 -x A python train.py\n")
    assert [("A" in e.environ, "B" in e.environ) for e in run.launched] == [(True, True), (True, False)]


def test_a_word_knows_where_its_value_was_written() -> None:
    text = "PORT=29500\ntorchrun --master_port $PORT train.py\n"
    (launched,) = job(text).launched
    origin = launched.argv[2].origins[0]
    assert text[origin.start : origin.end] == "29500"


@pytest.mark.parametrize(
    "text",
    [
        "while true; do A=$A$A; done",
        "A=x; for i in {1..40}; do A=$A$A; done; echo $A",
        "f() { f; }; f",
        "(" * 500 + ")" * 500,
        "echo " + "$(echo " * 200 + ")" * 200,
        "echo {1..1000}{1..1000}{1..1000}",
        "A=${A:-" * 300,
        "x=$((" + "(" * 3000 + "))",
        "[[ aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa =~ (a+)+$ ]] && echo x",
        "case x in " + "a) ;; " * 5000 + "esac",
        "for a in {1..1000}; do for b in {1..1000}; do C=$((C+1)); done; done",
        "echo ${x//a*b*c*d*/y}",
        "eval " * 100 + "echo hi",
        "#SBATCH -N 100000 --ntasks-per-node=100000\nsrun python train.py",
        "\x00\xff" * 100,
    ],
)
def test_a_hostile_script_ends(text: str) -> None:
    started = time.process_time()
    job(text)
    assert time.process_time() - started < 10  # seconds; a bound against endless work, not a measurement


@given(st.text(alphabet="ab$(){}[]<>|&;\"'`\\ \n=1*?#%/:-!~", max_size=60))
@settings(max_examples=2_000 if FULL else 150, deadline=None)
def test_no_text_crashes_it(text: str) -> None:
    job(text)


@given(st.sampled_from(sorted(TOOLS)), st.lists(st.text(max_size=8), max_size=3), st.text(max_size=40))
@settings(max_examples=2_000 if FULL else 150, deadline=None)
def test_no_argument_crashes_a_tool(name: str, words: list[str], stdin: str) -> None:
    printed = TOOLS[name](words, stdin)
    assert printed is None or (isinstance(printed[0], str) and isinstance(printed[1], int))


def test_host_lists() -> None:
    assert host_names("node[01-03,7],login1") == ["node01", "node02", "node03", "node7", "login1"]
    assert host_names("node[1-99999]") is None


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("S=0; echo a=$(((S)) && echo 0 || echo 1)", "a=1\n"),
        ("echo $((1+(2*3))) $(( (1) + (2) )) $(((1+2)*3))", "7 3 9\n"),
        ("A=(\n # c d\n x\n y # z\n)\necho ${#A[@]} ${A[@]}", "2 x y\n"),
    ],
)
def test_what_the_grammar_misreads_is_executed_as_bash_does(text: str, printed: str) -> None:
    assert evaluated(text)[0] == printed


@pytest.mark.parametrize("text", ["$((" * 100_000, "$(((a)) && b) " * 20_000, "echo $((" + "(1)" * 30_000])
def test_many_expansions_end(text: str) -> None:
    started = time.process_time()
    job(text)
    assert time.process_time() - started < 10  # seconds; a bound against endless work, not a measurement


def test_a_script_that_a_heredoc_writes_is_run_by_its_path() -> None:
    run = job("cat > /tmp/run_$SLURM_JOB_ID.sh <<E\ntorchrun train.py\nE\nsrun bash /tmp/run_$SLURM_JOB_ID.sh\n")
    assert commands(run) == ["torchrun train.py"]  # the same unknown path
    text = (
        "#SBATCH -N 1\ncat > /tmp/run_$SLURM_JOB_ID.sh <<E\ntorchrun train.py\nE\nsrun bash /tmp/run_$SLURM_JOB_ID.sh\n"
    )
    assert commands(job(text)) == ["torchrun train.py"]


def test_singularity_passes_the_environment_and_docker_does_not() -> None:
    text = "#SBATCH -N 1 -n 2\nsrun {} bash -c 'torchrun --rdzv-id $SLURM_PROCID train.py'\n"
    assert [e.argv[2].text for e in job(text.format("singularity exec x.sif")).launched] == ["0", "1"]
    assert [e.argv[2].text for e in job(text.format("singularity exec -e x.sif")).launched] == [UNKNOWN] * 2


@dataclass(frozen=True)
class _Texts:
    """A folder with one file."""

    content: str

    def text(self, path: str) -> str | None:
        return self.content if path in ("/job/job.sh", "/root/.bashrc") else None

    def script(self, path: str) -> None:
        return None

    def is_folder(self, path: str) -> bool:
        return False


def test_the_words_of_dirname_are_no_file_that_it_reads() -> None:
    text = 'HERE=$(cd "$(dirname "$0")" && pwd)\ntorchrun $HERE/a.py\n'
    run = run_job_file(text, "job.sh", {}, VERSION, "/job", _Texts(text))  # type: ignore[arg-type]
    assert commands(run) == ["torchrun /job/a.py"]


def test_a_startup_file_of_this_machine_is_not_the_clusters() -> None:
    text = "source ~/.bashrc && torchrun --node_rank $R a.py\n"
    run = run_job_file(text, "job.sh", {"HOME": "/root"}, VERSION, "/job", _Texts("R=5\n"))  # type: ignore[arg-type]
    assert commands(run) == ["torchrun --node_rank \0 a.py"]
    assert run.launched[0].is_certain


def test_a_file_that_the_job_writes_is_executed_with_its_unknown_pieces() -> None:
    run = job("cat > /tmp/run.sh <<EOF\nexport D=/tmp/$USER\ntorchrun --node_rank 3 a.py\nEOF\nsrun bash /tmp/run.sh\n")
    assert commands(run) == ["torchrun --node_rank 3 a.py"]
