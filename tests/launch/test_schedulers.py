"""Allocations of schedulers, what their launchers start and pass on, and files of SkyPilot, Compose and Docker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import inside

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.submission import Submission
from ddpdoctor.launch.evaluator.cluster import Allocation
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, Launched
from ddpdoctor.launch.evaluator.jobs import jobs_of_run
from ddpdoctor.launch.evaluator.launches import run_job_file
from ddpdoctor.launch.evaluator.schedulers import allocation_of_script
from ddpdoctor.launch.evaluator.submissions import submission_of
from ddpdoctor.launch.evaluator.task_files import dockerfile_task, yaml_task
from ddpdoctor.launch.hostfiles import deepspeed_pool, selected, slots_of_hosts
from ddpdoctor.launch.layers import parse_layers
from ddpdoctor.launch.shell.words import simple_commands

VERSION = (2, 13)


def allocation(*rows: str) -> Allocation:
    return allocation_of_script("\n".join(("#!/bin/bash", *rows, "true")), "job.sh", {}, VERSION)


def run(text: str) -> ImaginedRun:
    return run_job_file(text, "job.sh", {}, VERSION, "/tmp")


def submission(text: str) -> Submission:
    found = run(text)
    return submission_of("job.sh", text, found, jobs_of_run(found, Launch(), "job.sh", text, VERSION))


def words(launched: Launched) -> str:
    return " ".join(value.text for value in launched.argv)


@pytest.mark.parametrize(
    ("row", "nodes", "gpus", "slots"),
    [
        ("#PBS -l select=2:ncpus=32:ngpus=4", 2, 4, None),
        ("#PBS -l select=3:ncpus=8:mpiprocs=8:ngpus=2:mem=10gb,walltime=1:00:00", 3, 2, 8),
        ("#PBS -l nodes=2:ppn=16:gpus=4", 2, 4, 16),
        ("#PBS -l walltime=1:00:00,select=2:ngpus=8", 2, 8, None),
        ("#BSUB -nnodes 4", 4, None, None),
        ('#BSUB -n 16 -R "span[ptile=8]" -gpu "num=4:j_exclusive=yes"', 2, 4, None),
        ('#BSUB -n 8 -R "span[hosts=1]" -gpu num=2', 1, 2, None),
        ("#flux: -N 3", 3, None, None),
        ("#flux: --nodes=2", 2, None, None),
        ("#SBATCH --nodes=2 --gpus-per-task=2 --ntasks-per-node=2", 2, 4, 2),
    ],
)
def test_what_the_comments_of_a_script_ask_for(row: str, nodes: int, gpus: int | None, slots: int | None) -> None:
    found = allocation(row)
    assert (len(found.hosts), found.gpus_per_node, found.tasks_per_node) == (nodes, gpus, slots)
    assert found.nodes_are_known


@pytest.mark.parametrize("row", ["#PBS -l select=1:ngpus=8+3:ngpus=4", "#PBS -q gpu", '#BSUB -n 16 -gpu "num=4/task"'])
def test_an_allocation_of_unlike_chunks_is_not_known(row: str) -> None:
    found = allocation(row)
    assert not found.nodes_are_known
    assert found.gpus_per_node is None


def test_directives_after_the_first_command_are_comments() -> None:
    text = "#!/bin/bash\n#SBATCH -N 2\necho hi\n#SBATCH -N 4\n"
    assert len(allocation_of_script(text, "job.sh", {}, VERSION).hosts) == 2


def test_the_components_of_a_heterogeneous_job() -> None:
    found = allocation("#SBATCH -N 2 --gres=gpu:8", "#SBATCH hetjob", "#SBATCH -N 1 --gres=gpu:4")
    assert [each.hosts for each in found.components] == [("node-0", "node-1"), ("node-2",)]
    environ = found.environ()
    assert environ["SLURM_JOB_NODELIST_HET_GROUP_1"].text == "node-2"
    assert environ["SLURM_NNODES"].text == "2"
    assert environ["SLURM_HET_SIZE"].text == "2"


def test_a_node_file_of_pbs_lists_each_slot() -> None:
    found = run(
        "#PBS -l select=2:mpiprocs=2\nsort -u $PBS_NODEFILE > h\ntorchrun --master_addr $(head -n1 h) train.py\n"
    )
    assert words(found.launched[0]) == "torchrun --master_addr node-0 train.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a slots=4\nb slots=2 max_slots=4\n", {"a": 4, "b": 2}),
        ("# hosts\na:8\nb:8  # the second\n", {"a": 8, "b": 8}),
        ("a\na\nb\n", {"a": 2, "b": None}),
        ("", {}),
    ],
)
def test_host_files_of_mpi(text: str, expected: dict[str, int | None]) -> None:
    assert slots_of_hosts(text) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"a": 4, "b": 4}),
        ("--num_nodes 1", {"a": 4}),
        ("--num_gpus 2", {"a": 2, "b": 2}),
        ("--num_gpus 8", {"a": 8, "b": 8}),
        ("--include a:0,2", {"a": 2}),
        ("--include b@a:1", {"a": 1, "b": 4}),
        ("--exclude b:3", {"a": 4, "b": 3}),
        ("--exclude a", {"b": 4}),
        ("--include c", None),
        ("--exclude a:7", None),
    ],
)
def test_what_deepspeed_uses_of_its_host_file(options: str, expected: dict[str, int] | None) -> None:
    """As `parse_inclusion_exclusion` and `main` of deepspeed/launcher/runner.py do."""
    layer = parse_layers(simple_commands(f"deepspeed {options} train.py")[0].words, VERSION)[0]
    pool = deepspeed_pool("a slots=4\n\n# spare\nb slots=4\n")
    assert pool is not None
    found = selected(pool, layer)
    if options == "--exclude a:7":
        assert found == {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)} or found is None
    else:
        assert (None if found is None else {host: len(gpus) for host, gpus in found.items()}) == expected


@pytest.mark.parametrize("text", ["a slots=4\na slots=4\n", "a lots=4\n", "\n# nothing\n"])
def test_deepspeed_refuses_a_bad_host_file(text: str) -> None:
    assert deepspeed_pool(text) is None


def test_the_runner_of_deepspeed_starts_on_each_host() -> None:
    found = run("printf 'a slots=2\\nb slots=2\\n' > hosts\ndeepspeed --hostfile=hosts train.py\n")
    assert [(each.place.host, each.place.via, each.ranks) for each in found.launched] == [
        ("a", ("deepspeed",), 2),
        ("b", ("deepspeed",), 2),
    ]
    found = run(
        "printf 'a slots=2\\nb slots=2\\n' > hosts\ndeepspeed --hostfile=hosts --no_ssh --node_rank=1 train.py\n"
    )
    assert len(found.launched) == 1


def test_resource_sets_of_jsrun_and_tasks_of_flux() -> None:
    found = run("#BSUB -nnodes 2\njsrun -n 4 -r 2 -a 1 -g 3 python train.py\n")
    assert [(each.place.host, each.place.local, each.place.gpus) for each in found.launched] == [
        *(("node-0", 0, 3), ("node-0", 1, 3), ("node-1", 0, 3), ("node-1", 1, 3)),
    ]
    found = run("#flux: -N 2\nflux run -N2 -n4 -g1 python train.py\n")
    assert [(each.place.host, each.environ["FLUX_TASK_RANK"].text) for each in found.launched] == [
        *(("node-0", "0"), ("node-0", "1"), ("node-1", "2"), ("node-1", "3")),
    ]


def test_what_export_drops_is_remembered() -> None:
    found = run("#SBATCH -N 2\nexport A=1 B=2\nsrun --export=B,C=3 bash -c 'torchrun --rdzv-id $A.$B.$C train.py'\n")
    first = found.launched[0]
    assert words(first) == "torchrun --rdzv-id .2.3 train.py"
    assert first.place.missed == {"A"}
    assert first.place.withheld["A"].by == "srun --export=B,C=3"


@pytest.mark.parametrize(
    ("end", "is_awaited"), [("wait\n", True), ("", False), ("echo done\n", False), ("sleep 60\n", True)]
)
def test_a_script_that_ends_while_its_steps_run(end: str, is_awaited: bool) -> None:
    assert submission(f"#SBATCH -N 1\nsrun torchrun train.py &\n{end}").is_awaited is is_awaited


TORCHRUN = "torchrun --nnodes=2 --nproc_per_node=4 train.py"
SKY = """num_nodes: 3
resources: {accelerators: {A100: 4, H100: 4}}
envs: {PORT: 8008}
run: |
  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --node_rank=$SKYPILOT_NODE_RANK --master_addr=$HEAD --master_port=$PORT train.py
"""


def test_a_skypilot_task_runs_on_all_its_nodes() -> None:
    found = yaml_task(SKY, "task.yaml", VERSION)
    assert found is not None
    (job,) = found.jobs
    assert [(each.rank, each.world_size) for each in job.job.processes] == [(rank, 12) for rank in range(12)]
    assert (job.job.rendezvous.host, job.job.rendezvous.port) == ("10.0.0.1", 8008)


COMPOSE = """services:
  a:
    image: trainer
    command: torchrun --nnodes=2 --node-rank=0 --nproc-per-node=2 --master-addr=a --master-port=29500 train.py
  b:
    image: trainer
    command: [torchrun, --nnodes=2, --node-rank=1, --nproc-per-node=2, --master-addr=a, --master-port=29500, train.py]
  board:
    image: tensorboard
    command: tensorboard --logdir /logs
"""


def test_services_of_compose_are_hosts() -> None:
    found = yaml_task(COMPOSE, "compose.yaml", VERSION)
    assert found is not None
    (job,) = found.jobs
    assert [(each.host, each.rank) for each in job.job.processes] == [("a", 0), ("a", 1), ("b", 2), ("b", 3)]


def test_services_on_the_network_of_the_machine_are_one_host() -> None:
    text = COMPOSE.replace("image: trainer", "image: trainer\n    network_mode: host")
    found = yaml_task(text, "compose.yaml", VERSION)
    assert found is not None
    assert {each.place.host for job in found.jobs for each in job.launched} == {"docker-host"}


@pytest.mark.parametrize(
    "text", ["a: 1\n", "services: {}\n", "- run: x\n", "run: hello\n", "services: [a, b]\nkind: x\n"]
)
def test_other_yaml_is_no_task(text: str) -> None:
    assert yaml_task(text, "a.yaml", VERSION) is None


@pytest.mark.parametrize(
    ("text", "lines", "names"),
    [
        ('CMD ["torchrun", "--nproc_per_node=$N", "t.py"]\n', 0, [("N",)]),
        ('CMD ["sh", "-c", "torchrun --nproc_per_node=$N t.py"]\n', 0, [()]),
        ("CMD torchrun --nproc_per_node=$N \\\n  t.py\n", 1, []),
        ("CMD [broken\n", 0, []),
        ("FROM x\n", 0, []),
    ],
)
def test_the_command_of_a_dockerfile(text: str, lines: int, names: list[tuple[str, ...]]) -> None:
    found = dockerfile_task(text, "Dockerfile", VERSION)
    assert len(found.lines) == lines
    assert [each.names for each in found.submission.word_lists] == names


@pytest.mark.parametrize(
    ("name", "text", "processes"),
    [
        ("job.sbatch", f"#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1\nsrun {TORCHRUN}\n", 8),
        ("job.pbs", f"#!/bin/bash\n#PBS -l select=2:ngpus=4\nmpiexec -n 2 --ppn 1 {TORCHRUN}\n", 8),
        ("run.sh", "#!/bin/bash\nprintf 'a slots=2\\nb slots=4\\n' > hosts\ndeepspeed --hostfile=hosts train.py\n", 6),
        ("task.yaml", SKY, 12),
        ("compose.yaml", COMPOSE, 4),
    ],
)
def test_the_table_of_processes_shows_all_of_these(name: str, text: str, processes: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    done = inside("lint", name, "--show-processes", "--format", "json", cwd=tmp_path)
    shown = json.loads(done.stdout)
    assert sum(len(job["processes"]) for job in shown) == processes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nB=2\ntorchrun --rdzv-id $A.$B.$A train.py\n", "torchrun --rdzv-id 1.2.1 train.py"),
        ("A=1 B=2\ntorchrun --rdzv-id $A train.py\n", "torchrun --rdzv-id 1 train.py"),
        ("A=1 B=2 \\\n  torchrun --rdzv-id x train.py\n", "torchrun --rdzv-id x train.py"),
    ],
)
def test_words_and_assignments_that_the_grammar_cuts_elsewhere_than_bash(text: str, expected: str) -> None:
    (launched,) = run(text).launched
    assert words(launched) == expected
    assert ("A" in launched.environ) is ("\\" in text)


def test_a_folder_is_searched_for_task_files(tmp_path: Path) -> None:
    wrong = SKY.replace("$SKYPILOT_NODE_RANK", "0")
    texts = {
        "task.yaml": wrong,
        "compose.yml": COMPOSE,
        "other.yaml": "run: echo\n",
        "Dockerfile": "FROM x\nCMD torchrun t.py\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    report = json.loads(inside("lint", ".", "--format", "json", cwd=tmp_path).stdout)
    assert {Path(each["path"]).name for each in report["inputs"] if each["understood"]} >= {"task.yaml", "compose.yml"}
    assert [
        (each["code"], Path(each["where"]["file"]).name) for each in report["findings"] if each["severity"] == "error"
    ] == [("LAUNCH036", "task.yaml")]


@pytest.mark.parametrize(
    ("rows", "nodes", "gpus", "slots"),
    [
        (("#$ -pe smp 8", "#$ -l gpu=4"), 1, 4, "8"),
        (("#$ -pe smp 4", "#$ -l gpu=1"), 1, None, "4"),
        (("#$ -l gpu=4",), 1, 4, "1"),
        (("#$ -cwd", "#$ -l rt_F=2", "#$ -l h_rt=1:00:00"), 2, 4, "1"),
        (("#$ -l node_f=4",), 4, 4, "1"),
        (("#$ -pe mpi_8_tasks_per_node 16",), 2, None, "16"),
        (("#$ -pe 4way 8",), 2, None, "8"),
    ],
)
def test_what_grid_engine_is_asked_for(rows: tuple[str, ...], nodes: int, gpus: int | None, slots: str) -> None:
    found = allocation(*rows)
    assert (len(found.hosts), found.gpus_per_node, found.scheduler) == (nodes, gpus, "Grid Engine")
    assert found.nodes_are_known
    assert found.environ()["NSLOTS"].text == slots


def test_how_many_hosts_a_parallel_environment_uses_is_unknown_unless_its_name_says_it() -> None:
    found = allocation("#$ -pe mpi 16", "#$ -l gpu=4")
    assert not found.nodes_are_known
    assert found.gpus_per_node is None
    assert len(found.hosts) == 2
    assert [row.split()[:2] for row in found.texts[found.environ()["PE_HOSTFILE"].text].splitlines()] == [
        ["node-0", "8"],
        ["node-1", "8"],
    ]


def test_the_host_file_of_grid_engine_is_read() -> None:
    text = (
        "#$ -l rt_F=2\nH=$(awk 'NR==1{print $1}' $PE_HOSTFILE)\ncut -d' ' -f1 $PE_HOSTFILE > hosts\n"
        "N=$(wc -l < hosts)\ntorchrun --nnodes $N --master_addr $H train.py\n"
    )
    assert words(run(text).launched[0]) == "torchrun --nnodes 2 --master_addr node-0 train.py"


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ("#$ -t 1-4", "SGE_TASK_ID"),
        ("#PBS -J 0-3", "PBS_ARRAY_INDEX"),
        ("#PBS -t 0-3", "PBS_ARRAYID"),
        ("#BSUB -J sweep[1-4]", "LSB_JOBINDEX"),
    ],
)
def test_the_index_of_an_array_differs_in_each_of_its_jobs(rows: str, name: str) -> None:
    found = allocation(rows)
    assert found.is_array
    assert "array" in found.environ()[name].varies


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "#$ -l rt_F=2\nfor h in $(cut -d' ' -f1 $PE_HOSTFILE); do qrsh -inherit -nostdin $h torchrun a.py & done; wait\n",
            [("node-0", "torchrun a.py"), ("node-1", "torchrun a.py")],
        ),
        (
            '#BSUB -nnodes 2\nblaunch -z "$LSB_HOSTS" torchrun a.py\n',
            [("node-0", "torchrun a.py"), ("node-1", "torchrun a.py")],
        ),
        (
            "#BSUB -nnodes 2\nexport X=5\nblaunch node-1 'torchrun --rdzv-id $X a.py'\n",
            [("node-1", "torchrun --rdzv-id 5 a.py")],
        ),
        (
            "#PBS -l select=2:ngpus=4\npbsdsh -- bash -c 'torchrun a.py'\n",
            [("node-0", "torchrun a.py"), ("node-1", "torchrun a.py")],
        ),
    ],
)
def test_what_schedulers_start_on_other_hosts_by_name(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(each.place.host, words(each)) for each in run(text).launched] == expected


JOB = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4\nsrun torchrun --nnodes=4 a.py $1 $X\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"sbatch <<'EOF'\n{JOB}EOF\n", ["torchrun --nnodes=4 a.py ? ?"] * 2),
        (f"cat > /tmp/j <<'EOF'\n{JOB}EOF\nexport X=5\nsbatch -N 1 /tmp/j 7\n", ["torchrun --nnodes=4 a.py 7 5"]),
        (f"cat > /tmp/j <<'EOF'\n{JOB}EOF\nexport X=5\nsbatch --export=NONE /tmp/j\n", ["torchrun --nnodes=4 a.py ? ?"] * 2),
        (f"cat > /tmp/j <<'EOF'\n{JOB}EOF\nsbatch --export=ALL,X=3 /tmp/j\n", ["torchrun --nnodes=4 a.py ? 3"] * 2),
        ("sbatch -N2 --ntasks-per-node=1 --wrap 'srun torchrun --nnodes=$SLURM_NNODES a.py'", ["torchrun --nnodes=2 a.py"] * 2),
        ("salloc -N 2 --ntasks-per-node=1 srun torchrun a.py", ["torchrun a.py"] * 2),
    ],
)  # fmt: skip
def test_a_batch_job_that_a_script_submits_is_executed_with_its_own_allocation(text: str, expected: list[str]) -> None:
    found = run(text)
    assert [words(each).replace("\0", "?") for each in found.launched] == expected
    assert {each.place.host for each in found.launched} == {f"node-{at}" for at in range(len(expected))}
    assert found.allocation.scheduler == "Slurm"


def test_what_unlike_submitted_jobs_are_given_is_not_mixed() -> None:
    found = run("sbatch -N2 --wrap 'srun torchrun a.py'\nsbatch -N4 --wrap 'srun torchrun a.py'\n")
    assert found.allocation == Allocation()
    first, *_, last = (each.group for each in found.launched)
    assert [each.group for each in found.launched] == [first] * 2 + [last] * 4
    assert first != last


def test_a_number_of_nodes_that_the_command_line_computes_is_unknown() -> None:
    found = run("sbatch --nodes=$COUNT --wrap 'srun torchrun a.py'\n")
    assert not found.allocation.nodes_are_known


def test_the_host_that_submits_is_none_of_the_job() -> None:
    found = run('sbatch -N1 --wrap "srun torchrun --master_addr $(hostname) a.py"\n')
    assert words(found.launched[0]) == "torchrun --master_addr login-node a.py"


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ("-x node-0", ["node-1", "node-2"]),
        ("--exclude=node-[0-1]", ["node-2"]),
        ("-r 1", ["node-1", "node-2"]),
        ("-x $UNKNOWN_HOST", ["node-0", "node-1", "node-2"]),
    ],
)
def test_a_step_leaves_out_the_hosts_that_its_options_exclude(options: str, hosts: list[str]) -> None:
    found = run(f"#SBATCH -N 3 --ntasks-per-node=1\nsrun --ntasks-per-node=1 {options} torchrun a.py\n")
    assert [each.place.host for each in found.launched] == hosts


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-np 4 -H a:2,b:2", [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]),
        ("-np 2", [("node-0", "0"), ("node-0", "1")]),
        ("-np 3 --hosts a:1,b:2", [("a", "0"), ("b", "0"), ("b", "1")]),
    ],
)
def test_the_ranks_that_horovodrun_starts(options: str, expected: list[tuple[str, str]]) -> None:
    found = run(f"export LR=1\nhorovodrun {options} python a.py --lr $LR\n")
    assert [(each.place.host, each.environ["HOROVOD_LOCAL_RANK"].text) for each in found.launched] == expected
    assert all(each.environ["LR"].text == "1" and words(each) == "python a.py --lr 1" for each in found.launched)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "cat > .$TAG.sh <<'E'\nflux run -N $N -n $N -g 1 torchrun a.py\nE\nflux batch -N 2 --exclusive --env=N=2 .$TAG.sh\n",
            [("node-0", 1), ("node-1", 1)],
        ),
        (
            "cat > j <<'E'\n#$ -l rt_F=1\nqrsh -inherit node-1 torchrun a.py\nE\nqsub -l rt_F=2 j\n",
            [("node-1", 4)],
        ),
        (
            "cat > j <<'E'\n#PBS -q gpu\nmpiexec -n 2 --ppn 1 torchrun a.py\nE\nqsub -l select=2:ngpus=8 j\n",
            [("node-0", 8), ("node-1", 8)],
        ),
    ],
)
def test_what_flux_batch_and_qsub_submit(text: str, expected: list[tuple[str, int]]) -> None:
    found = run("TAG=x_$(date +%m%d_%H%M)\n" + text)
    assert [each.place.host for each in found.launched] == [host for host, _ in expected]
    assert [each.place.gpus for each in found.launched if each.place.via[-1] != "qrsh"] == [
        gpus for host, gpus in expected if len(expected) > 1
    ]


@pytest.mark.parametrize(("second", "expected"), [("2", "2"), ("4", UNKNOWN)])
def test_the_tasks_per_node_of_unlike_components_are_unknown(second: str, expected: str) -> None:
    found = run(
        f"#SBATCH -N 1 --ntasks-per-node=2\n#SBATCH hetjob\n#SBATCH -N 1 --ntasks-per-node={second}\n"
        "srun --het-group=0,1 python a.py\n"
    )
    assert {each.environ["SLURM_NTASKS_PER_NODE"].text for each in found.launched} == {expected}


def test_the_list_of_hosts_begins_with_the_batch_node_where_jsrun_starts_the_ranks() -> None:
    found = run(
        "#BSUB -nnodes 2\nH=$(sed -n 2p $LSB_DJOB_HOSTFILE)\nF=$(head -n 1 $LSB_DJOB_HOSTFILE)\n"
        "S=$(sort -u $LSB_DJOB_HOSTFILE | head -n 1)\njsrun -n 2 -r 1 python a.py $H $F $S\n"
    )
    assert [(each.place.host, words(each)) for each in found.launched] == [
        ("node-0", "python a.py node-0 the-batch-node \0"),  # where its name is sorted is not known
        ("node-1", "python a.py node-0 the-batch-node \0"),
    ]


def test_the_rank_of_a_flux_task_is_not_set_outside_it() -> None:
    found = run('#flux: -N 2\nflux run -N 2 -n 2 bash -c "torchrun --node_rank=$FLUX_TASK_RANK a.py"\n')
    assert words(found.launched[1]) == "torchrun --node_rank= a.py"
