"""The imagined cluster against the real programs: the same script gives the same processes, with the same variables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.imagined_run import Launched
from ddpdoctor.launch.evaluator.launches import run_job_file
from lab.hosts import hosts
from lab.mpi import AS_ROOT, hydra_over_all, remote_shell
from lab.processes import need
from lab.slurm import slurm

VERSION = (2, 13)
NAMES = (
    *("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE"),
    *("SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "PORT", "LATER"),
)
SHOW = """import json, os, sys, tempfile
shown = [{name: os.environ[name] for name in sys.argv[1].split(",") if name in os.environ}, sys.argv[2:]]
file, _ = tempfile.mkstemp(".shown", dir=os.path.dirname(os.path.abspath(__file__)))
os.write(file, json.dumps(shown).encode())
"""
Process = tuple[tuple[tuple[str, str], ...], tuple[str, ...]]

SCRIPTS = {
    "tasks per node": "#SBATCH --nodes=2 --ntasks-per-node=2\nexport PORT=29500\nsrun {show} a\n",
    "tasks in all": "#SBATCH --nodes=2 --ntasks=3\nsrun {show} a\n",
    "a smaller step": "#SBATCH --nodes=2 --ntasks-per-node=2\nsrun -N1 -n1 {show} a\nsrun -n2 {show} b\n",
    "a step with tasks of its own": "#SBATCH --nodes=2\nsrun -O --ntasks-per-node=3 {show} a\n",
    "more tasks than nodes": "#SBATCH --nodes=2\nsrun -O -n 4 {show} a\n",
    "expanded in the batch step": "#SBATCH -N 2 --ntasks-per-node=1\nsrun {show} $SLURM_PROCID $SLURM_NNODES $SLURM_NTASKS\n",
    "expanded in the task": "#SBATCH -N 2 --ntasks-per-node=1\nsrun /bin/bash -c '{show} $SLURM_PROCID $SLURM_NNODES'\n",
    "export none": "#SBATCH -N 2 --ntasks-per-node=1\nexport PORT=1\nsrun --export=NONE /bin/bash -c '{show} x$PORT'\n",
    "export one": "#SBATCH -N 2 --ntasks-per-node=1\nexport PORT=1\nsrun --export=LATER=2 /bin/bash -c '{show} x$PORT'\n",
    "export all and one": "#SBATCH -N 2 --ntasks-per-node=1\nexport PORT=1\nsrun --export=ALL,LATER=2 {show} a\n",
    "exported by the environment": (
        "#SBATCH -N 2 --ntasks-per-node=1\nexport PORT=1 SLURM_EXPORT_ENV=NONE\nsrun /bin/bash -c '{show} x$PORT'\n"
    ),
    "components": (  # with equal counts: of unequal ones Slurm passes on either, in no certain order
        "#SBATCH -N 2 --ntasks-per-node=1\n#SBATCH hetjob\n#SBATCH -N 1 --ntasks-per-node=1\n"
        "srun --het-group=0,1 {show} $SLURM_HET_SIZE $SLURM_JOB_NUM_NODES_HET_GROUP_1\n"
    ),
    "the first component": (
        "#SBATCH -N 2 --ntasks-per-node=1\n#SBATCH hetjob\n#SBATCH -N 1 --ntasks-per-node=2\nsrun {show} $SLURM_NNODES\n"
    ),
    "the second component": (
        "#SBATCH -N 1 --ntasks-per-node=1\n#SBATCH hetjob\n#SBATCH -N 2 --ntasks-per-node=1\nsrun --het-group=1 {show} a\n"
    ),
}


def imagined(text: str, names: Sequence[str]) -> list[Process]:
    """The processes of the imagined cluster, each with those of the variables that it has."""
    run = run_job_file(text, "job.sh", {}, VERSION, "/tmp")
    return sorted(_imagined(launched, names) for launched in run.launched)


def _imagined(launched: Launched, names: Sequence[str]) -> Process:
    environ = {name: value.text for name, value in launched.environ.items() if name in names}
    assert all(UNKNOWN not in text for text in environ.values())
    script = [value.text for value in launched.argv].index("show.py")
    return tuple(sorted(environ.items())), tuple(value.text for value in launched.argv[script + 2 :])


def real(folder: Path) -> list[Process]:
    """What the processes noted, each in a file of its own: what they print may be mixed, or lost with a daemon."""
    shown = (json.loads(file.read_text()) for file in folder.glob("*.shown"))
    return sorted((tuple(sorted(environ.items())), tuple(words)) for environ, words in shown)


@pytest.mark.parametrize("name", SCRIPTS)
def test_slurm_starts_the_imagined_processes(name: str, tmp_path: Path) -> None:
    body = SCRIPTS[name]
    (tmp_path / "show.py").write_text(SHOW)
    program = f"{sys.executable} {tmp_path}/show.py {','.join(NAMES)}"
    meant = imagined("#!/bin/bash\n" + body.replace("{show}", f"python show.py {','.join(NAMES)}"), NAMES)
    with slurm(nodes=3) as cluster:
        done = cluster.sbatch(body.replace("{show}", program), timeout=60)
    assert meant, name
    assert real(tmp_path) == meant, done.stderr


OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "KEPT", "LOST")
HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "KEPT")


@pytest.mark.parametrize("slots", [(1, 1), (2, 1), (2, 2)])
def test_open_mpi_by_rsh_starts_the_imagined_ranks(slots: tuple[int, int], tmp_path: Path) -> None:
    """Only the variables of -x reach the other host."""
    need("mpirun.openmpi")
    (tmp_path / "show.py").write_text(SHOW)
    named = ",".join(f"node{at}:{count}" for at, count in enumerate(slots))
    shown = ",".join(OPEN_MPI)
    text = f"export KEPT=1\nexport LOST=1\nmpirun -H {named} -x KEPT python show.py {shown}\n"
    with hosts(2) as lab, remote_shell(lab, tmp_path) as shell:
        ways = ("plm_rsh_agent", str(shell), "btl_tcp_if_include", "eth0", "oob_tcp_if_include", "eth0")
        mca = [word for at in range(0, len(ways), 2) for word in ("--mca", *ways[at : at + 2])]
        line = ["mpirun.openmpi", *mca, "-H", named, "-x", "KEPT", sys.executable, str(tmp_path / "show.py"), shown]
        done = lab.host(0).run(line, timeout=60, env={**AS_ROOT, "KEPT": "1", "LOST": "1"})
    assert real(tmp_path) == imagined(text, OPEN_MPI), done.stderr


def test_mpich_starts_the_imagined_ranks_and_passes_everything_on(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    shown = ",".join(HYDRA)
    text = f"export KEPT=1\nmpiexec -hosts node0:2,node1:2 -n 4 python show.py {shown}\n"
    with hosts(2) as lab, remote_shell(lab, tmp_path) as shell:
        argv = [sys.executable, str(tmp_path / "show.py"), shown]
        done = hydra_over_all(lab, shell, argv, each=2, timeout=60, env={"KEPT": "1"})
    assert real(tmp_path) == imagined(text, HYDRA), done.stderr
