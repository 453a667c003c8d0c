"""Lines of NCCL in both of its formats: every signature matches in either, and what no cause knows is quoted whole."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from cases import all_cases

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.collectors.log.scanner import Scanner
from ddpdoctor.facts.log import Log, LogSource
from ddpdoctor.facts.nccl_line import nccl_line, without_function
from ddpdoctor.findings import Finding, Report, Role
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import load

SIGNATURES = {each.code: each.signatures for each in load() if each.signatures}
PLACED = re.compile(r"(?P<place>[\w./]+\.(?:cc|h):\d+)(?P<function> \(\w+\))? (?=NCCL WARN |-> ?\d)")
CASES = [case for case in all_cases("log-line") if case.fires and PLACED.search(case.text)]
PREFIXES = (
    "",
    "node-01:189884:189884 [3] ",
    "[2026-05-05 06:16:47] node-01:189884:189884 [3] ",
    "3: node-01:189884:189884 [3] ",
)


def _bare(line: str) -> str:
    return re.sub(r"^(?:\[[^\]]*\] )?[\w.-]+:\d+:\d+ \[\d+\] (?=\S+:\d+ )", "", line)


def _older(line: str) -> str:
    return PLACED.sub(r"\g<place> ", line)


def _newer(line: str) -> str:
    return PLACED.sub(lambda m: f"{m['place']}{m['function'] or ' (ncclCommInitRankFunc)'} ", line)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_signature_matches_in_both_formats_and_behind_every_prefix(case: object) -> None:
    code, text = case.code, _bare(case.text)  # type: ignore[attr-defined]
    forms = {form(text) for form in (_older, _newer)}
    assert len(forms) == 2
    scanner = Scanner(SIGNATURES[code])
    for line in (prefix + form for form in forms for prefix in PREFIXES):
        part = scanner.scan(io.BytesIO(f"first\n{line}\nlast\n".encode()))
        log = Log(sources=(LogSource("job.txt"),), lines=tuple(part.lines))
        assert matching_lines(log, SIGNATURES[code]), line


def test_most_signatures_of_nccl_are_tested_in_both_formats() -> None:
    assert len({case.code for case in CASES}) >= 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b.cc:12 (fn) NCCL WARN Failed", ("WARN", "a/b.cc", 12, "fn", "Failed")),
        ("a/b.cc:12 NCCL WARN Failed (twice)", ("WARN", "a/b.cc", 12, "", "Failed (twice)")),
        ("a/b.cc:12 (fn) NCCL ATTN Slow", ("ATTN", "a/b.cc", 12, "fn", "Slow")),
        ("NCCL INFO a/b.cc:12 (fn) -> 6", ("INFO", "a/b.cc", 12, "fn", "-> 6")),
        ("NCCL INFO a/b.cc:12 -> 6 [Async thread]", ("INFO", "a/b.cc", 12, "", "-> 6 [Async thread]")),
        (
            "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
            ("INFO", "", None, "", "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"),
        ),
        ("ofi_process_cq:175 NCCL WARN NET/OFI x", ("WARN", "ofi_process_cq", 175, "", "NET/OFI x")),
        ("node-01:77 NCCL DIAG [OK]   NVLink: fine", ("DIAG", "node-01", 77, "", "[OK]   NVLink: fine")),
    ],
)
def test_a_line_is_taken_apart(text: str, expected: tuple[object, ...]) -> None:
    line = nccl_line(text)
    assert line is not None
    assert (line.level, line.file, line.line, line.function, line.text) == expected


def test_a_line_of_somebody_else_is_none_of_nccl() -> None:
    assert nccl_line("loss 0.3 (mean) -> 0.2") is None
    assert without_function("train.py:7 (main) -> 2 epochs") == "train.py:7 (main) -> 2 epochs"


def _triaged(folder: Path, text: str) -> Report:
    (folder / "job.txt").write_text(text)
    report, _ = triaged([str(folder / "job.txt")], Request(), started=time.monotonic())
    assert not report.crashed
    return report


def _first(folder: Path, text: str) -> Finding:
    return _triaged(folder, text).findings[0]


UNKNOWN = """\
[2026-05-05 06:16:47] node-01:1884:1899 [3] init.cc:1400 (initTransportsRank) NCCL WARN Failed to determine local ranks rank 3
node-01:1884:1899 [3] NCCL INFO HINT: In many cases this error indicates that the IMEX (NVLink fabric) service is not running
node-01:1884:1899 [3] NCCL INFO HINT: To confirm, run 'nvidia-imex-ctl -N' to check the IMEX channel and domain status.
node-01:1884:1899 [3] NCCL INFO init.cc:1402 (initTransportsRank) -> 3
"""


def test_a_warning_that_no_cause_knows_is_quoted_whole_with_its_function(tmp_path: Path) -> None:
    found = _first(tmp_path, UNKNOWN)
    assert found.code == "LOG502"
    assert "initTransportsRank" in found.message
    assert "Failed to determine local ranks rank 3" in found.quote


def test_a_hint_of_nccl_is_the_fix_and_names_the_candidate(tmp_path: Path) -> None:
    found = _first(tmp_path, UNKNOWN)
    assert "nvidia-imex-ctl -N" in found.fix
    assert found.candidates == ("TOPO023",)
    assert [e.seen for e in found.evidence if "HINT" in e.seen]


def test_a_hint_of_another_process_is_not_taken(tmp_path: Path) -> None:
    found = _first(tmp_path, UNKNOWN.replace("1884:1899 [3] NCCL INFO HINT", "1885:1900 [4] NCCL INFO HINT"))
    assert "nvidia-imex-ctl" not in found.fix


def test_hints_are_shown_beneath_a_known_cause(tmp_path: Path) -> None:
    text = (
        "n1:80:90 [0] misc/ibvwrap.cc:376 (wrap_ibv_modify_qp) NCCL WARN Call to ibv_modify_qp failed with 110 "
        "Connection timed out, on dev mlx5_2:1, curr state INIT, next state RTR, "
        "local GID index 3, local GID ::ffff:10.9.1.2, remote GID ::ffff:10.9.1.3\n"
        "n1:80:90 [0] NCCL INFO HINT: In many cases this error occurs when NICs are not cross-rail connected.\n"
        "n1:80:90 [0] NCCL INFO transport/net_ib/connect.cc:700 (ncclIbConnectImpl) -> 2\n"
    )
    found = _first(tmp_path, text)
    assert found.code.startswith("NET")
    assert any("cross-rail" in e.seen for e in found.evidence)


@pytest.mark.parametrize("function", ["", "(socketWait) "])
def test_returned_errors_alone_are_a_failure(tmp_path: Path, function: str) -> None:
    report = _triaged(tmp_path, f"n1:80:90 [0] NCCL INFO misc/socket.cc:80 {function}-> 6\n")
    assert [f.code for f in report.findings if f.role is Role.CAUSE] == ["LOG502"]


def test_differences_that_diagnostics_report_are_warnings(tmp_path: Path) -> None:
    found = _first(
        tmp_path,
        "node-01:1895 NCCL DIAG [INFO] NCCL environment: 2 NCCL_* env var(s) differ across ranks in comm 0x1f2e\n"
        "node-01:1895 NCCL DIAG RAS diagnostics completed in 12.4 ms across 8 ranks\n",
    )
    assert (found.code, found.worst.value) == ("LOG538", "warning")
    assert found.candidates == ("ENV031",)
