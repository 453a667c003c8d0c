"""`triage`, `check --facts` and `compare` take files of other tools: alone, mixed with logs, in folders and in archives."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor

from ddpdoctor.collectors.archives import unpack
from tests.tool_output import outputs
from tests.tool_output.outputs import nvlink_status, smi_query, topology

SICK = smi_query(2).replace("Remapping Failure Occurred        : No", "Remapping Failure Occurred        : Yes", 1)
FAILED_JOB = "".join(
    f"[rank{rank}]: Traceback (most recent call last):\n"
    f'[rank{rank}]:   File "/app/train.py", line 10, in <module>\n'
    f"[rank{rank}]:     raise ValueError('bad batch')\n"
    f"[rank{rank}]: ValueError: bad batch\n"
    for rank in range(2)
)


def report_of(*words: str | Path) -> tuple[int, dict[str, Any]]:
    """The exit code and the report of a command."""
    done = doctor(*map(str, words), "--format", "json")
    return done.returncode, json.loads(done.stdout)


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


@pytest.mark.parametrize("command", [("triage",), ("check", "--facts")])
def test_one_file_is_judged_and_the_finding_has_its_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "nvidia-smi-q.txt"
    file.write_text(SICK)
    code, report = report_of(*command, file)
    assert (code, report["verdict"]) == (1, "fail")
    (finding,) = [each for each in report["findings"] if each["code"] == "GPU023"]
    assert (finding["where"]["file"], finding["where"]["gpu"]) == (str(file), 0)
    assert "Remapping Failure Occurred" in SICK.split("\n")[finding["where"]["line"] - 1]
    assert report["inputs"][0]["understood"]


@pytest.mark.parametrize("command", [("triage",), ("check", "--facts")])
def test_a_healthy_file_passes_and_the_report_says_what_was_examined(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "q.txt").write_text(smi_query(8))
    code, report = report_of(*command, tmp_path / "q.txt")
    assert (code, report["verdict"]) == (0, "pass")
    assert "GPU023" in report["passed"]
    assert "TOPO011" not in report["passed"]
    table = doctor(*command, str(tmp_path / "q.txt"))
    assert (
        "examined: ECC errors, row remapping" in " ".join((table.stdout + table.stderr).split())
        or command[0] == "check"
    )


def test_files_beside_the_log_of_a_job_are_judged_with_it(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(FAILED_JOB)
    (tmp_path / "nvidia-smi-q.txt").write_text(SICK)
    (tmp_path / "ibstat.txt").write_text(outputs.IBSTAT)
    code, report = report_of("triage", tmp_path)
    assert code == 1
    assert {"GPU023", "NET037"} <= set(codes(report))
    assert len(report["jobs"]) == 1
    kinds = {Path(each["path"]).name: each["kind"] for each in report["inputs"]}
    assert kinds == {"train.log": "log", "nvidia-smi-q.txt": "nvidia-smi", "ibstat.txt": "ibstat"}


def test_an_archive_of_several_hosts_is_read(tmp_path: Path) -> None:
    texts = {"gpu-07/q.txt": smi_query(8), "gpu-07/topo.txt": topology(weak=5), "gpu-08/q.txt": smi_query(8)}
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as packed:
        for name, text in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            packed.addfile(info, io.BytesIO(text.encode()))
    code, report = report_of("triage", tmp_path / "bundle.tar.gz")
    assert code == 1 or report["verdict"] == "warn"
    (finding,) = [each for each in report["findings"] if each["code"] == "TOPO011"]
    assert (finding["where"]["host"], finding["where"]["gpu"]) == ("gpu-07", 5)
    assert finding["where"]["file"] == f"{tmp_path}/bundle.tar.gz/gpu-07/topo.txt"


def test_a_compressed_bug_report_is_read(tmp_path: Path) -> None:
    kernel = "a line of the kernel log\n" * 250_000
    text = f"Start of NVIDIA bug report log file\nuname: Linux gpu-07 5.15.0-1 #1 SMP\n{kernel}{SICK}\n____\n{outputs.LSPCI}\n"
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(gzip.compress(text.encode()))
    _, report = report_of("triage", tmp_path / "nvidia-bug-report.log.gz")
    assert {"GPU023", "NET510"} <= set(codes(report))
    assert {each["where"]["host"] for each in report["findings"] if each["code"] == "GPU023"} == {"gpu-07"}


def test_names_that_lead_out_of_an_archive_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        for name in ("../evil.txt", "/abs.txt", "ok/q.txt"):
            packed.writestr(name, SICK)
    with tarfile.open(tmp_path / "bad.tar", "w") as packed_tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        packed_tar.addfile(link)
    assert unpack(str(tmp_path / "bad.zip"), str(tmp_path / "in")).files == 1
    assert unpack(str(tmp_path / "bad.tar"), str(tmp_path / "in")).files == 0
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.txt")) == ["in/ok/q.txt"]
    code, report = report_of("triage", tmp_path / "bad.zip")
    assert code == 1
    assert [each["reason"] for each in report["inputs"] if not each["understood"]] == [
        "2 files with a path outside of the archive"
    ]


def test_archives_are_bounded(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for i in range(20):
            packed.writestr(f"{i}.txt", "0" * 1_000_000)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    by_size = unpack(str(tmp_path / "bomb.zip"), str(tmp_path / "a"), most_bytes=3 << 20)
    assert sum(path.stat().st_size for path in (tmp_path / "a").iterdir()) <= 3 << 20
    assert by_size.problem == "only its first 3 MiB were read"
    by_number = unpack(str(tmp_path / "bomb.zip"), str(tmp_path / "b"), most_members=5)
    assert (by_number.files, by_number.problem) == (5, "only its first 5 files were read")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 torn", b"\x1f\x8b torn"])
def test_a_torn_archive_is_not_a_pass(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "torn.tar.gz").write_bytes(data)
    code, report = report_of("triage", tmp_path / "torn.tar.gz")
    assert (code, report["verdict"]) == (3, "incomplete")


def test_check_takes_several_files_of_facts_and_tools(tmp_path: Path) -> None:
    for name, text in {"gpu-07-q.txt": smi_query(2), "gpu-08-q.txt": SICK}.items():
        (tmp_path / name).write_text(text)
    code, report = report_of("check", "--facts", tmp_path / "gpu-07-q.txt", "--facts", tmp_path / "gpu-08-q.txt")
    assert code == 1
    assert {each["where"]["host"] for each in report["findings"] if each["code"] == "GPU023"} == {"gpu-08"}


def test_only_check_takes_several_files(tmp_path: Path) -> None:
    done = doctor("gpus", "--facts", str(tmp_path / "a"), "--facts", str(tmp_path / "b"))
    assert done.returncode == 2
    assert "only `ddpdoctor check` takes several files" in done.stderr


def test_compare_takes_the_outputs_of_a_good_and_a_bad_node(tmp_path: Path) -> None:
    for host, text in {"gpu-07": smi_query(8), "gpu-08": smi_query(7), "gpu-09": smi_query(8)}.items():
        (tmp_path / host).mkdir()
        (tmp_path / host / "nvidia-smi-q.txt").write_text(text)
    code, report = report_of("compare", *(tmp_path / host for host in ("gpu-07", "gpu-08", "gpu-09")))
    assert code == 0
    (finding,) = [each for each in report["findings"] if each["code"] == "LAUNCH075"]
    assert "gpu-08" in finding["message"]
    assert not any("container" in each["message"] for each in report["findings"])


def test_what_is_recognised_and_not_judged_is_not_a_pass(tmp_path: Path) -> None:
    (tmp_path / "rocm.txt").write_text(
        "============ ROCm System Management Interface ============\nGPU  Temp\n0    35.0c\n"
    )
    code, report = report_of("triage", tmp_path / "rocm.txt")
    assert (code, report["verdict"]) == (3, "incomplete")
    assert report["inputs"][0]["reason"] == "rocm-smi: ddpdoctor judges NVIDIA GPUs only"


def test_results_of_nccl_tests_are_not_the_log_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "all_reduce.txt").write_text(outputs.NCCL_TESTS)
    code, report = report_of("triage", tmp_path / "all_reduce.txt")
    assert (code, report["verdict"], report["jobs"]) == (0, "pass", [])
    assert [each["kind"] for each in report["inputs"]] == ["nccl-tests"]
    assert "PROBE015" in report["passed"]


def test_a_job_that_calls_nvidia_smi_first_stays_a_job(tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").write_text(outputs.smi_table(2) + FAILED_JOB)
    _, report = report_of("triage", tmp_path / "slurm-7.out")
    assert [each["kind"] for each in report["inputs"]] == ["log"]
    assert len(report["jobs"]) == 1
    assert "GPU010" not in codes(report)


def test_standard_input_can_be_the_output_of_a_tool(tmp_path: Path) -> None:
    done = doctor("triage", "--format", "json", "-", stdin=nvlink_status(8, down=(3, 7)).encode())
    report = json.loads(done.stdout)
    assert codes(report) == ["TOPO011"]
    assert report["findings"][0]["where"]["gpu"] == 3


def test_gpus_and_topo_show_and_judge_the_files_of_other_tools(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text(SICK)
    (tmp_path / "topo.txt").write_text(topology(weak=5))
    gpus = doctor("gpus", "--facts", str(tmp_path / "q.txt"))
    assert gpus.returncode == 1
    assert "GPU023" in gpus.stdout
    assert "H100 80GB HBM3" in gpus.stdout
    assert "CUDA_VISIBLE_DEVICES" not in gpus.stdout, "the variables of no process are known"
    topo = doctor("topo", "--facts", str(tmp_path / "topo.txt"))
    assert "TOPO011" in topo.stdout
    assert "local ranks" not in topo.stdout
    shown = [line.split("\t")[:9] for line in topo.stdout.split("\n") if line.startswith("GPU")]
    given = [line.split()[:9] for line in topology(weak=5).split("\n") if line.startswith("GPU")]
    assert [[cell.strip() for cell in row] for row in shown] == given


def test_direct_links_of_a_matrix_are_shown_as_printed_and_not_judged(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(
        "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV2\tPIX\t0-23\nGPU1\tNV2\t X \tSYS\t24-47\n"
    )
    topo = doctor("topo", "--facts", str(tmp_path / "topo.txt"))
    assert topo.returncode == 3, "the wiring of direct links is not judged"
    rows = [line.split("\t") for line in topo.stdout.split("\n")[:4]]
    assert [[cell.strip() for cell in row[1:5]] for row in rows[1:]] == [
        ["X", "NV2", "PIX", "0-23"],
        ["NV2", "X", "SYS", "24-47"],
        ["PIX", "SYS", "X"],
    ]
    gpus = doctor("gpus", "--facts", str(tmp_path / "topo.txt"))
    assert (gpus.returncode, gpus.stdout.split("\n")[0]) == (3, "2 GPUs; the files show no more about them")


def test_a_part_shows_each_host_of_an_archive(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as packed:
        for host in ("gpu-07", "gpu-08"):
            info = tarfile.TarInfo(f"{host}/q.txt")
            info.size = len(smi_query(2))
            packed.addfile(info, io.BytesIO(smi_query(2).encode()))
    gpus = doctor("gpus", "--facts", str(tmp_path / "bundle.tar.gz"))
    assert gpus.returncode == 0
    assert [line for line in gpus.stdout.split("\n") if line.startswith("gpu-")] == ["gpu-07:", "gpu-08:"]
    code, report = report_of("net", "--facts", tmp_path / "bundle.tar.gz")
    assert (code, report["verdict"]) == (3, "incomplete"), "files of GPUs show nothing about the network"


def test_nothing_passes_that_no_file_shows(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text(smi_query(2))
    _, report = report_of("check", "--facts", tmp_path / "q.txt")
    assert not {"TOPO003", "GPU017", "LAUNCH023", "LAUNCH024"} & set(report["passed"]), (
        "no file shows pairs of GPUs, MIG instances, or the variables of a job"
    )
    with zipfile.ZipFile(tmp_path / "plan.zip", "w") as packed:
        packed.writestr("graph.xml", '<graphs version="1">\n  <graph id="0" pattern="4"/>\n</graphs>\n')
    code, report = report_of("check", "--facts", tmp_path / "plan.zip")
    assert (code, report["verdict"]) == (3, "incomplete"), "nothing in the archive was understood"
