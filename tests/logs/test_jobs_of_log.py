"""Which inputs are of one job, and which show none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import doctor
from flight_dumps import call, dump, pickled
from job_folders import banner, causes, died, judged, raised, steps, stopped_by_slurm, write

from ddpdoctor.findings import Report, Severity, Verdict

GOOD = banner() + steps(40) + "Training finished\n"
BAD = banner() + steps() + raised() + died()


def _bad(pid: int, hour: int = 9, rank: int = 1, host: str = "gpu-07") -> str:
    return banner() + steps(hour=hour) + raised(rank=rank) + died(rank, pid=pid, host=host, hour=hour)


def _good(hour: int) -> str:
    return banner() + steps(40, hour=hour) + "Training finished\n"


PODS = "pods/ns_{}_3f2c1b7a-aaaa-bbbb-cccc-12121212121{}/pytorch/0.log"
LAYOUTS: dict[str, tuple[dict[str, str], dict[str, list[int]]]] = {
    "names, ids and two streams": (
        {
            "bert-4801.out": steps(),
            "bert-4801.err": _bad(1),
            "vit-4802.out": steps(hour=11),
            "vit-4802.err": _bad(2, 11),
        },
        {"bert-4801": [0, 1], "vit-4802": [2, 3]},
    ),
    "a folder per id": (
        {
            "4801/rank0.log": steps(rank=0),
            "4801/rank1.log": raised(),
            "4802/rank0.log": steps(rank=0, hour=13),
            "4802/rank1.log": raised("ValueError: x"),
        },
        {"4801": [0, 1], "4802": [2, 3]},
    ),
    "an output and a tree per id": (
        {
            "slurm-4801.out": _bad(1),
            "slurm-4802.out": _good(12),
            "logs/4801/none_abcdefgh/attempt_0/0/stderr.log": raised(rank=0),
            "logs/4802/none_abcdefgi/attempt_0/0/stderr.log": steps(rank=0, hour=12),
        },
        {"slurm-4801": [0, 2], "slurm-4802": [1, 3]},
    ),
    "an output per node": (
        {"4712-gpu-07.out": _bad(1), "4712-gpu-08.out": _bad(5, host="gpu-08", rank=9)},
        {"jobs": [0, 1]},
    ),
    "logs of pods by namespace": (
        {
            PODS.format("bert-worker-0", 1): _bad(1),
            PODS.format("bert-worker-1", 2): steps(rank=2),
            PODS.format("vit-worker-0", 3): _good(9),
        },
        {"bert": [0, 1], "vit": [2]},
    ),
    "numbered versions": (
        {"lightning_logs/version_0/train.log": _bad(3), "lightning_logs/version_1/train.log": _bad(4, 12)},
        {"version_0": [0], "version_1": [1]},
    ),
    "dates and times": (
        {
            "outputs/2025-04-12/09-00-00/train.log": steps() + raised(rank=0),
            "outputs/2025-04-12/14-00-00/train.log": _good(14),
        },
        {"09-00-00": [0], "14-00-00": [1]},
    ),
    "a folder per stream": (
        {"stdout/0.log": steps(rank=0), "stdout/1.log": steps(rank=1), "stderr/1.log": raised()},
        {"jobs": [0, 1, 2]},
    ),
    "a folder per host": (
        {"gpu-07/train.log": _bad(1), "gpu-08/train.log": _bad(5, host="gpu-08", rank=9)},
        {"train": [0, 1]},
    ),
    "experiments at the same time": (
        {"exp_a/train.log": _bad(1, rank=0), "exp_b/train.log": _bad(2, rank=0)},
        {"exp_a": [0], "exp_b": [1]},
    ),
    "runs one after the other": (
        {"run_1.log": _bad(1, rank=0), "run_2.log": _bad(2, 12, rank=0), "run_3.log": _good(15)},
        {"run_1": [0], "run_2": [1], "run_3": [2]},
    ),
    "ids in the text alone": (
        {
            "a.txt": "SLURM_JOB_ID=77\n" + _bad(1),
            "b.txt": "SLURM_JOB_ID=78\n" + _bad(2),
            "c.txt": "SLURM_JOB_ID=77\n" + steps(rank=4),
        },
        {"slurm-77": [0, 2], "slurm-78": [1]},
    ),
    "a head and a worker that waited": (
        {"head.log": raised(rank=0) + steps(2), "worker1.log": steps(hour=12, rank=8) + raised("TimeoutError", rank=8)},
        {"jobs": [0, 1]},
    ),
    "trees of two runs without an id": (
        {
            "l/none_aaaaaaaa/attempt_0/0/stdout.log": steps(rank=0),
            "l/none_aaaaaaaa/attempt_0/1/stderr.log": raised(),
            "l/none_bbbbbbbb/attempt_0/0/stdout.log": _good(15),
        },
        {"none_aaaaaaaa": [0, 1], "none_bbbbbbbb": [2]},
    ),
    "trees of two nodes of a run without an id": (
        {
            "l/none_aaaaaaaa/attempt_0/0/stdout.log": steps(rank=0),
            "l/none_bbbbbbbb/attempt_0/0/stdout.log": steps(rank=8) + raised(rank=8),
        },
        {"none_aaaaaaaa": [0, 1]},
    ),
    "tasks of an array of SGE": (
        {"train.o777.1": _good(9), "train.o777.2": _bad(2), "train.o777.3": _good(9)},
        {"train-777.1": [0], "train-777.2": [1], "train-777.3": [2]},
    ),
    "pods of jobs with numbers in their names": (
        {"ft-7b-master-0.log": _bad(1, rank=0), "ft-7b-worker-0.log": steps(rank=1), "ft-13b-master-0.log": _good(9)},
        {"ft-7b": [0, 1], "ft-13b": [2]},
    ),
    "kernel logs of two hosts": (
        {
            "dmesg-gpu-07.txt": "Apr 12 09:00:03 gpu-07 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
            * 2,
            "dmesg-gpu-09.txt": "Apr 12 09:00:03 gpu-09 kernel: usb 1-1: new device\n" * 2,
            "slurm-61001.out": _bad(1),
            "slurm-61002.out": _bad(2, host="gpu-09"),
        },
        {"slurm-61001": [0, 2], "slurm-61002": [1, 3]},
    ),
    "two commands in the background": (
        {"all.log": "+ torchrun a.py\n+ torchrun b.py\n" + banner() + banner() + steps() + raised() + died(pid=5)},
        {"all": [0]},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_told_apart(tmp_path: Path, layout: str) -> None:
    files, expected = LAYOUTS[layout]
    folder = tmp_path / "jobs"
    folder.mkdir()
    report = judged(folder, files)
    paths = [str(folder / name) for name in files]
    assert {
        job.name: [i for i, path in enumerate(paths) if _job_of(report, path) == job.name] for job in report.jobs
    } == expected
    assert all(found for outcome, found in causes(report).values() if outcome == "failed"), (
        "a job that failed has a cause"
    )


def _job_of(report: Report, path: str) -> str | None:
    return next(each.job for each in report.inputs if each.path == path)


def test_commands_that_a_shell_traced_are_launches(tmp_path: Path) -> None:
    launch = "+ torchrun --nproc_per_node 2 {}.py\n"
    text = launch.format("a") + _bad(1) + launch.format("b") + _good(10) + launch.format("c") + _bad(9, 12)
    report = judged(tmp_path, {"all.log": text})
    assert {job.name: job.outcome for job in report.jobs} == {
        "all#1": "failed",
        "all#2": "completed",
        "all#3": "failed",
    }
    assert {f.job for f in report.findings if f.worst is Severity.ERROR} == {"all#1", "all#3"}


def _names(report: Report) -> list[str]:
    return sorted(job.name for job in report.jobs)


def test_one_log_is_one_job_with_its_name(tmp_path: Path) -> None:
    report = judged(tmp_path, {"slurm-4712.out": BAD})
    assert _names(report) == ["slurm-4712"]
    assert report.subject == f"{tmp_path}/slurm-4712.out: 1 rank, 09:00:00 to 09:01:00, exit 1"
    assert {f.job for f in report.findings} == {"slurm-4712"}


def test_names_in_the_style_of_x_and_j_are_jobs(tmp_path: Path) -> None:
    report = judged(tmp_path, {"bert_4801.log": BAD, "bert_4802.log": GOOD + died(0, pid=77), "bert_4803.log": BAD})
    assert _names(report) == ["bert_4801", "bert_4802", "bert_4803"]


def test_a_log_per_task_under_the_id_of_the_job_is_one_job(tmp_path: Path) -> None:
    """`%j_%t`: the same number in all names, and a small one that differs."""
    report = judged(tmp_path, {f"4712_{task}.out": steps(rank=task) for task in range(4)})
    assert len(report.jobs) == 1


def test_process_ids_in_names_are_no_jobs(tmp_path: Path) -> None:
    nccl = "gpu-07:{pid}:{pid} [{rank}] NCCL INFO comm 0x55d1 rank {rank} nranks 4 cudaDev {rank} busId 65000 - Init COMPLETE\n"
    files = {f"nccl.gpu-07.{4100 + rank}": nccl.format(pid=4100 + rank, rank=rank) for rank in range(4)}
    assert len(judged(tmp_path, files).jobs) == 1


def test_times_in_the_names_of_ranks_are_no_jobs(tmp_path: Path) -> None:
    files = {f"train_20250412_09000{rank}.log": steps(rank=rank) for rank in range(4)}
    assert len(judged(tmp_path, files).jobs) == 1


def test_files_of_a_rotated_log_are_one_job(tmp_path: Path) -> None:
    files = {"train.log": steps(hour=11), "train.log.1": steps(hour=10), "train.log.2": steps(hour=9)}
    assert len(judged(tmp_path, files).jobs) == 1


def test_a_log_beside_its_tree_and_dumps_is_one_job(tmp_path: Path) -> None:
    files = {"slurm-88.out": BAD, "logs/none_4gzp9ct_/attempt_0/1/stderr.log": raised(), "nccl_debug.txt": steps()}
    write(tmp_path, files)
    start = [call("all_reduce")]
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickled(dump(start, groups={"0": [0, 1]})))
    report = judged(tmp_path, {})
    assert _names(report) == ["slurm-88"]
    assert {each.job for each in report.inputs} == {"slurm-88"}


def test_dumps_alone_are_a_job(tmp_path: Path) -> None:
    start = [call("all_reduce")]
    waits = dump([*start, call("all_reduce", state="started", line=21)], groups={"0": [0, 1]})
    for rank, content in enumerate((waits, dump(start, groups={"0": [0, 1]}))):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickled(content))
    report = judged(tmp_path, {})
    assert [job.ranks for job in report.jobs] == [(0, 1)]
    assert report.findings[0].job == report.jobs[0].name


def test_dumps_beside_several_jobs_are_of_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickled(dump([call("all_reduce")], groups={"0": [0, 1]})))
    report = judged(tmp_path, {"slurm-1.out": BAD, "slurm-2.out": GOOD})
    assert [each.job for each in report.inputs if "trace" in each.path] == [None]


def test_a_requeued_job_in_one_file_is_two_launches(tmp_path: Path) -> None:
    first = banner() + steps() + stopped_by_slurm(91, "DUE TO JOB REQUEUE")
    report = judged(
        tmp_path, {"slurm-91.out": first + banner("12:00:00", 50001) + steps(40, hour=12) + "Training finished\n"}
    )
    assert {name: outcome for name, (outcome, _) in causes(report).items()} == {
        "slurm-91#1": "failed",
        "slurm-91#2": "completed",
    }


def test_launchers_of_several_nodes_in_one_file_are_one_job(tmp_path: Path) -> None:
    """The last node starts after the first one has given up."""
    text = (
        banner() + banner("09:14:03", 51) + died(0) + banner("09:14:30", 61) + steps(hour=10) + died(8, pid=62, hour=10)
    )
    assert len(judged(tmp_path, {"train.log": text}).jobs) == 1


def test_a_restart_by_torchrun_is_no_launch(tmp_path: Path) -> None:
    again = "[default]: attempts left; will restart worker group\n"
    assert (
        len(judged(tmp_path, {"train.log": banner() + steps() + raised() + again + steps(hour=10) + raised()}).jobs)
        == 1
    )


def test_logs_of_different_names_at_different_times_are_jobs(tmp_path: Path) -> None:
    report = judged(
        tmp_path, {"resnet.log": steps(hour=9) + raised(rank=0), "bert.log": steps(40, hour=14) + "Training finished\n"}
    )
    assert {job.name: job.outcome for job in report.jobs} == {"resnet": "failed", "bert": "completed"}


@pytest.mark.parametrize(
    "names", [("master.log", "worker.log"), ("train.out", "train.err"), ("train.log", "nccl_debug.log")]
)
def test_parts_of_one_job_stay_together_whatever_their_times(tmp_path: Path, names: tuple[str, str]) -> None:
    report = judged(tmp_path, {names[0]: steps(hour=9), names[1]: steps(hour=14) + raised(rank=0)})
    assert len(report.jobs) == 1


def test_times_of_different_zones_are_not_compared(tmp_path: Path) -> None:
    zoned = "".join(f"2025-04-12T16:00:{second:02}Z step {second} loss 0.3\n" for second in range(9))
    assert len(judged(tmp_path, {"metrics.log": zoned, "train.log": steps() + raised(rank=0)}).jobs) == 1


def test_nodes_that_were_both_given_rank_0_are_one_job(tmp_path: Path) -> None:
    files = {f"node{node}.log": banner() + steps() + died(0, pid=800 + node, host=f"gpu-0{node}") for node in range(2)}
    assert len(judged(tmp_path, files).jobs) == 1


def test_the_same_rank_in_two_processes_is_of_two_jobs(tmp_path: Path) -> None:
    report = judged(
        tmp_path, {"gpt.log": raised(rank=0) + died(0, pid=5), "vit.log": raised(rank=0) + died(0, code=-9, pid=9)}
    )
    assert _names(report) == ["gpt", "vit"]


def test_a_kernel_log_beside_one_job_is_its_own(tmp_path: Path) -> None:
    kernel = "[ 100.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n" * 2
    report = judged(tmp_path, {"dmesg.txt": kernel, "train.log": BAD})
    assert _names(report) == ["train"]
    assert {each.job for each in report.inputs} == {"train"}


def test_a_kernel_log_of_an_unknown_host_is_of_none_of_several_jobs(tmp_path: Path) -> None:
    kernel = "[ 100.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n" * 2
    report = judged(tmp_path, {"dmesg.txt": kernel, "slurm-1.out": BAD, "slurm-2.out": BAD})
    assert {f.job for f in report.findings if f.code.startswith("GPU")} == {None}


def test_six_jobs_do_not_lose_a_segfault(tmp_path: Path) -> None:
    files = {f"slurm-{100 + i}.out": BAD for i in range(5)}
    report = judged(tmp_path, {**files, "slurm-105.out": banner() + steps() + died(code=-11)})
    assert causes(report)["slurm-105"][1] != causes(report)["slurm-100"][1]
    assert report.subject == "6 jobs in 6 files: 6 failed"


def test_the_worst_job_comes_first(tmp_path: Path) -> None:
    report = judged(tmp_path, {"slurm-9.out": GOOD, "slurm-10.out": BAD, "slurm-2.out": BAD})
    assert [job.name for job in report.jobs] == ["slurm-2", "slurm-10", "slurm-9"]


def test_one_job_of_several_can_be_shown(tmp_path: Path) -> None:
    files = {"slurm-1.out": GOOD, "slurm-2.out": BAD}
    report = judged(tmp_path, files, job="slurm-1")
    assert [job.name for job in report.jobs] == ["slurm-1"]
    assert report.verdict is Verdict.PASS
    assert {f.job for f in report.findings} <= {"slurm-1"}
    done = doctor("triage", "--job", "slurm-3", str(tmp_path))
    assert done.returncode == 2
    assert "did you mean slurm-" in done.stderr
    assert "slurm-1, slurm-2" in done.stderr


def test_the_json_holds_all_jobs(tmp_path: Path) -> None:
    write(tmp_path, {"slurm-1.out": GOOD, "slurm-2.out": BAD})
    report = json.loads(doctor("triage", "--format", "json", str(tmp_path)).stdout)
    assert [(job["name"], job["outcome"], job["verdict"], job["exit"]) for job in report["jobs"]] == [
        ("slurm-2", "failed", "fail", 1),
        ("slurm-1", "completed", "pass", None),
    ]
    assert {each["job"] for each in report["findings"] if each["severity"] == "error"} == {"slurm-2"}


def test_secrets_are_not_in_the_names_either(tmp_path: Path) -> None:
    report = judged(tmp_path, {"run_token=PLANTED1PLANTED1/train.log": BAD, "b/slurm-2.out": BAD})
    assert "PLANTED" not in repr((report.inputs, report.jobs, report.subject, [f.job for f in report.findings]))
