"""Folders that were written before the grouping was: each is judged as a stranger to it would expect."""

from __future__ import annotations

from pathlib import Path

from job_folders import banner, causes, died, judged, raised, steps, stopped_by_slurm

EXCEPTION, SEGFAULT = "LOG500", "LOG501"


def test_three_jobs_of_slurm(tmp_path: Path) -> None:
    report = judged(
        tmp_path,
        {
            "slurm-4711.out": banner() + steps(40) + "Training finished\n",
            "slurm-4712.out": banner() + steps() + raised() + died(),
            "slurm-4713.out": steps(40, hour=11) + stopped_by_slurm(4713, hour=11),
        },
    )
    found = causes(report)
    assert {name: outcome for name, (outcome, _) in found.items()}.keys() == {"slurm-4711", "slurm-4712", "slurm-4713"}
    assert found["slurm-4711"] == ("completed", [])
    assert found["slurm-4712"][0] == found["slurm-4713"][0] == "failed"
    assert found["slurm-4712"][1] != found["slurm-4713"][1]
    assert all(f.caused_by is None or f.job == "slurm-4712" for f in report.findings)


def test_tasks_of_an_array_are_jobs(tmp_path: Path) -> None:
    report = judged(
        tmp_path,
        {
            f"slurm-900_{task}.out": banner()
            + steps(hour=task)
            + (raised() + died(hour=task) if task == 3 else "Training finished\n")
            for task in range(1, 6)
        },
    )
    assert len(report.jobs) == 5
    assert [job.name for job in report.jobs if job.outcome == "failed"] == ["slurm-900_3"]


def test_output_and_errors_of_one_job_are_one_job(tmp_path: Path) -> None:
    report = judged(
        tmp_path,
        {
            "train.o5521": steps(),
            "train.e5521": banner() + raised() + died(),
            "train.o5522": steps(40, hour=12) + "Training finished\n",
            "train.e5522": banner("12:00:00"),
        },
    )
    assert len(report.jobs) == 2
    failed, good = report.jobs
    assert (failed.outcome, good.outcome) == ("failed", "completed")
    assert "5521" in failed.name
    assert "5522" in good.name


def test_a_log_per_rank_of_64_is_one_job(tmp_path: Path) -> None:
    files = {f"rank{rank}.log": steps(hour=9 + rank % 2) for rank in range(64)}
    files["rank17.log"] += raised(rank=None)
    report = judged(tmp_path, files)
    assert len(report.jobs) == 1
    assert report.findings[0].ranks == (17,)
    assert len(report.jobs[0].ranks) == 64


def test_pods_of_two_jobs(tmp_path: Path) -> None:
    report = judged(
        tmp_path,
        {
            "bert-master-0.log": banner() + steps(rank=0) + raised(rank=0) + died(0),
            "bert-worker-0.log": banner() + steps(rank=1),
            "resnet-master-0.log": banner() + steps(40, rank=0) + "Training finished\n",
            "resnet-worker-0.log": banner() + steps(40, rank=1) + "Training finished\n",
        },
    )
    assert {job.name: job.outcome for job in report.jobs} == {"bert": "failed", "resnet": "completed"}
    assert {each.job for each in report.inputs if "bert" in each.path} == {"bert"}


def test_two_trees_of_torchrun_with_different_run_ids(tmp_path: Path) -> None:
    report = judged(
        tmp_path,
        {
            "logs/sweep1_ab12cd/attempt_0/0/stderr.log": raised(rank=0),
            "logs/sweep1_ab12cd/attempt_0/1/stdout.log": steps(),
            "logs/sweep2_ef34gh/attempt_0/0/stdout.log": steps(40) + "Training finished\n",
            "logs/sweep2_ef34gh/attempt_0/1/stdout.log": steps(40) + "Training finished\n",
        },
    )
    assert sorted(job.outcome for job in report.jobs) == ["completed", "failed"]


def test_restarts_in_one_tree_of_torchrun_are_one_job(tmp_path: Path) -> None:
    report = judged(
        tmp_path,
        {f"none_ab12cd/attempt_{i}/{rank}/stderr.log": raised(rank=rank) for i in range(3) for rank in range(2)},
    )
    assert len(report.jobs) == 1


def test_nodes_of_one_job_whose_times_do_not_overlap_are_one_job(tmp_path: Path) -> None:
    report = judged(
        tmp_path,
        {
            "node0.log": banner() + raised(rank=0) + died(0, hour=9),
            "node1.log": steps(hour=10, rank=8) + raised(rank=8),
        },
    )
    assert len(report.jobs) == 1


def test_a_second_launch_in_one_file(tmp_path: Path) -> None:
    first = banner() + steps() + raised() + died(pid=881)
    second = (
        banner("12:00:00", 50001)
        + steps(40, hour=12)
        + raised("ValueError: bad split", rank=0)
        + died(0, pid=50010, hour=12)
    )
    report = judged(tmp_path, {"train.log": first + second})
    assert len(report.jobs) == 2
    assert [f.job for f in report.findings if f.where.rank == 0] != [
        f.job for f in report.findings if f.where.rank == 1
    ]


def test_a_kernel_log_belongs_to_the_jobs_of_its_host(tmp_path: Path) -> None:
    kernel = "".join(
        f"Apr 12 09:00:{second:02} gpu-07 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        for second in (3, 4, 5)
    )
    report = judged(
        tmp_path,
        {
            "dmesg.txt": kernel,
            "slurm-1001.out": banner()
            + steps()
            + raised("RuntimeError: CUDA error: unspecified launch failure")
            + died(host="gpu-07"),
            "slurm-1002.out": banner() + steps() + raised() + died(host="gpu-12"),
        },
    )
    assert len(report.jobs) == 2
    assert {f.job for f in report.findings if f.code.startswith("GPU")} == {"slurm-1001"}


def test_200_jobs_are_judged_one_by_one(tmp_path: Path) -> None:
    files = {
        f"slurm-{7000 + i}.out": banner()
        + steps()
        + (died(code=-11) if i == 150 else raised() + died() if i % 2 else "Training finished\n")
        for i in range(200)
    }
    report = judged(tmp_path, files)
    assert len(report.jobs) == 200
    assert {f.code for f in report.findings if f.job == "slurm-7150"} - {
        f.code for f in report.findings if f.job == "slurm-7001"
    }
    assert report.subject == "200 jobs in 200 files: 101 failed, 99 completed"


def test_two_runs_in_folders_of_their_own(tmp_path: Path) -> None:
    report = judged(
        tmp_path,
        {
            "run_a/rank0.log": steps(hour=9) + raised(rank=0),
            "run_a/rank1.log": steps(hour=9),
            "run_b/rank0.log": steps(40, hour=14) + "Training finished\n",
            "run_b/rank1.log": steps(40, hour=14) + "Training finished\n",
        },
    )
    assert sorted(job.outcome for job in report.jobs) == ["completed", "failed"]
