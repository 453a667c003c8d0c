"""Models of launchers, files and operators that were too weak for sick job files of the field."""

from __future__ import annotations

import posixpath

import pytest

from ddpdoctor.facts.launch.record import StartedScript
from ddpdoctor.launch.evaluator.cluster import host_list
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun
from ddpdoctor.launch.evaluator.jobs import ImaginedJob, processes_of_job
from ddpdoctor.launch.evaluator.launches import run_job_file
from ddpdoctor.launch.evaluator.manifests import imagined_manifest_jobs
from ddpdoctor.launch.evaluator.task_files import yaml_task
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.launch.manifests.yaml_nodes import documents, text_of

VERSION = (2, 13)


class Files:
    """Files by their paths."""

    def __init__(self, **texts: str) -> None:
        self._texts = {name.replace("__", "/"): text for name, text in texts.items()}

    def script(self, path: str) -> StartedScript | None:
        return None

    def text(self, path: str) -> str | None:
        return self._texts.get(posixpath.normpath(path).replace(".", "_"))

    def is_folder(self, path: str) -> bool:
        return False


def run(text: str, files: FileLookup = NO_FILES) -> ImaginedRun:
    return run_job_file(text, "job.sh", {}, VERSION, "/work", files)


def variables(found: ImaginedRun, *names: str) -> list[tuple[str, ...]]:
    return [tuple(each.environ[n].text if n in each.environ else "-" for n in names) for each in found.launched]


def compose(text: str, files: FileLookup = NO_FILES) -> tuple[ImaginedJob, ...]:
    found = yaml_task(text, "compose.yaml", VERSION, files)
    assert found is not None
    return found.jobs


def table(job: ImaginedJob) -> list[tuple[str | None, int | None, int | None]]:
    """Host, rank and world of each process, as `--show-processes` prints them."""
    return [(each.host, each.rank, each.world_size) for each in processes_of_job(job)]


def test_each_mpi_library_sets_its_own_variables() -> None:
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    assert variables(run("mpirun -np 2 -H a:2 -x PATH python t.py\n"), *names) == [
        ("0", "-", "-", "-"),
        ("1", "-", "-", "-"),
    ]
    assert variables(run("mpiexec.hydra -hosts a -n 2 python t.py\n"), *names) == [
        ("-", "0", "0", "-"),
        ("-", "1", "1", "-"),
    ]
    pals = "#PBS -l select=2:ngpus=2\nmpiexec -n 4 --ppn 2 --cpu-bind none python t.py\n"
    assert variables(run(pals), *names)[1:3] == [("-", "1", "-", "1"), ("-", "2", "-", "0")]


def test_genv_sets_a_variable_in_both_of_its_forms() -> None:
    for words in ("-genv WORLD_SIZE 8", "-genv WORLD_SIZE=8"):
        assert variables(run(f"mpiexec.hydra -n 1 {words} python t.py\n"), "WORLD_SIZE") == [("8",)]


def test_hosts_are_filled_again_when_all_are_full() -> None:
    found = run("mpirun -np 5 -H a:1,b:1 --oversubscribe -x PATH python t.py\n")
    assert [each.place.host for each in found.launched] == ["a", "b", "a", "b", "a"]
    assert [each.place.local for each in found.launched] == [0, 0, 1, 1, 2]


def test_jsrun_fills_all_hosts_where_the_number_of_sets_is_not_known() -> None:
    found = run("#BSUB -nnodes 2\njsrun -n $N -r 2 -a 1 -g 1 python t.py\n")
    assert [each.place.host for each in found.launched] == ["node-0", "node-0", "node-1", "node-1"]


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (("node03", "node05", "node07", "node08"), "node[03,05,07-08]"),
        (("a1", "b1", "b2"), "a1,b[1-2]"),
        (("login", "n1"), "login,n1"),
        (("n9", "n10"), "n9,n10"),
    ],
)
def test_a_list_of_hosts_is_written_as_slurm_does(hosts: tuple[str, ...], text: str) -> None:
    assert host_list(hosts) == text


def test_a_file_is_found_again_by_a_path_with_an_unknown_piece() -> None:
    found = run("F=$WORK/run.sh\necho 'torchrun t.py' > $F\nbash $F\nbash $OTHER/other.sh\n")
    assert [[value.text for value in each.argv] for each in found.launched] == [["torchrun", "t.py"]]


def test_the_words_of_eval_keep_their_places() -> None:
    text = 'X="--nnodes=2"\neval torchrun $X t.py\n'
    argv = run(text).launched[0].argv
    assert [text[v.origins[0].start : v.origins[0].end] for v in argv[1:]] == ["--nnodes=2", "t.py"]


COMPOSE = """
services:
  head:
    image: x
    env_file: common.env
    environment: &env {NODE_RANK: 0, MASTER_ADDR: head}
    command: &run [bash, /app/start.sh]
    volumes: &app ["./app:/app:ro"]
  worker:
    image: x
    env_file: [common.env]
    environment: {<<: *env, NODE_RANK: 1}
    command: *run
    volumes: *app
"""
START = (
    "torchrun --nnodes=$N --nproc_per_node=1 --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR --master_port=2950 t.py"
)


def test_compose_reads_merge_keys_env_files_and_what_its_volumes_mount() -> None:
    files = Files(common_env="# sizes\nexport N='2'\n", app__start_sh=f"#!/bin/bash\nexec {START}\n")
    (job,) = compose(COMPOSE, files)
    assert table(job) == [("head", 0, 2), ("worker", 1, 2)]


def test_compose_copies_have_the_same_settings() -> None:
    command = START.replace("$", "$$")
    (job,) = compose(
        "services:\n  w:\n    image: x\n    deploy: {replicas: 2}\n"
        f"    environment: [N=2, NODE_RANK=0, MASTER_ADDR=w]\n    command: bash -c '{command}'\n"
    )
    assert [each.place.host for each in job.launched] == ["w-1", "w-2"]
    assert [rank for _, rank, _ in table(job)] == [0, 0]


def test_compose_services_extend_others_and_a_circle_of_them_ends() -> None:
    (job, *_) = compose(
        "services:\n  a:\n    extends: b\n    command: torchrun --nproc_per_node=2 t.py\n"
        "  b:\n    image: x\n    extends: {service: a}\n    environment: {RANKS: '1'}\n"
    )
    assert job.launched[0].environ["RANKS"].text == "1"


def test_merge_keys_count_once_and_end() -> None:
    rows = "a0: &a0 {x: 1, y: 2}\n" + "".join(
        f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}], z{n}: {n}}}\n" for n in range(1, 60)
    )
    roots, failures = documents("a.yaml", rows)
    assert not failures
    last = roots[0].get("a59")
    assert last is not None
    names = [name for name, _ in last.pairs()]
    assert names[0] == "z59"
    assert len(names) == len(set(names)) <= 200
    own = documents("b.yaml", "a: &a {k: 1}\nb: {<<: *a, k: 2}\n")[0][0].get("b", "k")
    assert text_of(own) == "2"


LWS = """
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  leaderWorkerTemplate:
    size: 4
    workerTemplate:
      spec:
        containers:
        - command: [python3, -m, vllm.entrypoints.openai.api_server, --tensor-parallel-size, "8", --pipeline_parallel_size=4]
          resources: {limits: {nvidia.com/gpu: 8}}
"""


def test_what_vllm_asks_for_is_compared_with_its_group() -> None:
    _, _, submission = imagined_manifest_jobs(LWS, "lws.yaml", VERSION)
    assert {demand.gpus for demand in submission.demands} == {32}
    assert sum(group.gpus * (group.pods or 0) for group in submission.ray_groups) == 32


def test_background_commands_of_a_pipe_are_left_to_no_wait() -> None:
    text = (
        "#PBS -l select=2:ngpus=1\n"
        "sort -u $PBS_NODEFILE | while read h; do ssh -n $h torchrun --nnodes=2 t.py & done\nwait\n"
    )
    assert [each.is_left for each in run(text).launched] == [True, True]
    inside = (
        "#PBS -l select=2:ngpus=1\nsort -u $PBS_NODEFILE | { while read h; do ssh -n $h torchrun t.py & done; wait; }\n"
    )
    assert [each.is_left for each in run(inside).launched] == [False, False]
