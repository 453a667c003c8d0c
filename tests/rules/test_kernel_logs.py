"""`triage` of kernel logs: every Xid and SXid with its GPU, its age, the restarts since, in every form that logs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.collectors.log.read_logs import collect
from ddpdoctor.engine import judge
from ddpdoctor.facts.log import GpuAddress, Log
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.xids import BY_KIND, XIDS, XidKind, xid_in
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.logs.gpu_addresses import gpu_at
from ddpdoctor.logs.kernel_log import KernelLog, time_of
from ddpdoctor.rules import load
from ddpdoctor.rules.views import log_rules

AREAS = ("gpu", "topo", "versions", "host", "log")
Form = Callable[[int, str], str]
FORMS: dict[str, Form] = {
    "dmesg": lambda s, t: f"[{s + 3600:5}.000100] {t}",
    "dmesg --raw": lambda s, t: f"<3>[{s + 3600:5}.000100] {t}",
    "dmesg -x": lambda s, t: f"kern  :err   : [{s + 3600:5}.000100] {t}",
    "dmesg -T": lambda s, t: f"[Sat Nov 21 07:{s // 60:02}:{s % 60:02} 2026] {t}",
    "dmesg --time-format iso": lambda s, t: f"2026-11-21T07:{s // 60:02}:{s % 60:02},000100+00:00 {t}",
    "journalctl -k": lambda s, t: f"Nov 21 07:{s // 60:02}:{s % 60:02} node7 kernel: {t}",
    "journalctl -k -o short-iso": lambda s, t: f"2026-11-21T07:{s // 60:02}:{s % 60:02}+0000 node7 kernel: {t}",
    "journalctl -k -o short-full": lambda s, t: f"Sat 2026-11-21 07:{s // 60:02}:{s % 60:02} UTC node7 kernel: {t}",
    "journalctl -k -o short-monotonic": lambda s, t: f"[{s + 3600:5}.000100] node7 kernel: {t}",
    "journalctl -k -o short-unix": lambda s, t: f"{1763708400 + s}.000100 node7 kernel: {t}",
    "kern.log": lambda s, t: f"Nov 21 07:{s // 60:02}:{s % 60:02} node7 kernel: [{s + 3600:5}.000100] {t}",
    "syslog, RFC 3339": lambda s, t: f"2026-11-21T07:{s // 60:02}:{s % 60:02}.000100+00:00 node7 kernel: {t}",
    "/dev/kmsg": lambda s, t: f"3,{s},{(s + 3600) * 1000000},-;{t}",
}
OF_HOSTS = [form for form in FORMS if "node7" in FORMS[form](0, "")]


def judged(folder: Path, text: str, *others: str) -> list[Finding]:
    (folder / "kernel.txt").write_text(text)
    rules = log_rules(load(AREAS))
    log = collect(
        [str(folder / name) for name in ("kernel.txt", *others)], [s for each in rules for s in each.signatures]
    )
    outcome = judge(Facts(schema=SCHEMA, collected_at="", hostname="here", log=log), rules)
    assert not outcome.crashed
    return outcome.findings


@pytest.mark.parametrize("form", FORMS)
def test_an_xid_is_told_from_every_form_of_the_kernel_s_log(form: str, tmp_path: Path) -> None:
    write = FORMS[form]
    lines = [
        write(0, "usb 1-1: new high-speed USB device number 2"),
        write(5, "NVRM: Xid (PCI:0000:4e:00): 79, pid=2121, name=python3, GPU has fallen off the bus."),
        write(6, "NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus."),
        write(305, "eth0: link becomes ready"),
    ]
    (found,) = judged(tmp_path, "\n".join(lines) + "\n")
    assert (found.code, found.severity, found.where.line) == ("GPU007", Severity.ERROR, 2)
    assert "GPU at 0000:4e:00" in found.message
    assert "5 min before the log ends" in found.message
    assert "(Xid 79 in python3, pid 2121, " in found.message
    assert found.message.endswith("NVIDIA's action: restart the machine")
    # Without a host in the line, the path of the file may name one.
    assert (found.where.host == "node7") is (form in OF_HOSTS)


NCCL_SAYS = "node7:100:200 [3] NCCL INFO comm 0x55d0 rank 11 nranks 16 cudaDev 3 nvmlDev 3 busId 4e000 commId 0x1 - Init COMPLETE"


@pytest.mark.parametrize(
    ("form", "lines", "gpu"),
    [
        ("journalctl -k", [NCCL_SAYS], 3),
        ("dmesg", [NCCL_SAYS], 3),
        ("dmesg", [NCCL_SAYS, NCCL_SAYS.replace("node7", "node8")], None),  # which host the kernel is of, nobody says
        ("journalctl -k", [NCCL_SAYS.replace("node7", "node8")], None),
        ("journalctl -k", [NCCL_SAYS, NCCL_SAYS.replace("4e000", "51000")], None),  # containers: all have a GPU 3
        ("journalctl -k", [NCCL_SAYS.replace("busId 4e000", "busId 14e000")], None),  # another PCI domain
        ("journalctl -k", [], None),
    ],
)
def test_an_xid_s_gpu_is_the_one_that_nccl_s_lines_put_at_its_bus_id(
    form: str, lines: list[str], gpu: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the names of folders may look like a host's
    kernel = FORMS[form](5, "NVRM: Xid (PCI:0000:4e:00): 79, pid=2121, name=python3, GPU has fallen off the bus.")
    Path("ranks.txt").write_text("".join(f"{line}\n" for line in lines))
    found = judged(Path(), kernel + "\n", "ranks.txt")
    assert [each.where.gpu for each in found] == [gpu]
    assert ("GPU 3 (0000:4e:00)" in found[0].message) is (gpu is not None)


def test_the_gpu_at_a_bus_id_is_named_by_collected_facts() -> None:
    seats = (GpuAddress("node7.cluster", "0000:4e:00", 3), GpuAddress("node8", "0000:4e:00", 5))
    assert gpu_at(Log(seats=seats), "node7", "0000:4e:00") == 3
    assert gpu_at(Log(seats=seats), "node8", "0000:4e:00") == 5
    assert gpu_at(Log(seats=seats), None, "0000:4e:00") is None
    assert gpu_at(Log(seats=seats), "node7", "0000:51:00") is None


CODE_OF = {r.xids: r.code for r in load() if r.xids is not None}


def test_every_kind_of_xid_has_one_cause() -> None:
    assert set(CODE_OF) == set(XidKind)
    assert len([r for r in load() if r.xids is not None]) == len(XidKind)


@pytest.mark.parametrize("code", sorted(XIDS))
def test_every_xid_shows_its_cause(code: int, tmp_path: Path) -> None:
    found = judged(tmp_path, f"[    1.000000] x\n[   60.000000] NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, name=a, b\n")
    assert [f.code for f in found] == [CODE_OF[XIDS[code].kind]]
    assert found[0].message.startswith("the GPU at 0000:3b:00")
    assert f"(Xid {code} in " in found[0].message
    assert XIDS[code].action in found[0].message


def test_the_signatures_of_each_cause_match_the_xids_of_the_table() -> None:
    import re

    rules = {each.code: each for each in load(("gpu", "topo"))}
    for kind, codes in BY_KIND.items():
        if kind is XidKind.OTHER_XID:
            continue
        for code in codes:
            line = f"NVRM: Xid (PCI:0000:3b:00): {code}, x"
            assert any(re.search(pattern, line) for pattern in rules[CODE_OF[kind]].signatures), (kind, code)


@pytest.mark.parametrize(
    ("text", "code", "severity"),
    [
        ("20034, Fatal, Link 28 LTSSM Fault Up", "TOPO015", Severity.ERROR),
        ("22013, Non-fatal, Link 15 ingress ECC", "TOPO016", Severity.NOTE),
    ],
)
def test_an_sxid_is_told_once_without_the_lines_of_registers(
    text: str, code: str, severity: Severity, tmp_path: Path
) -> None:
    number = text.partition(",")[0]
    lines = [
        f"[ 10.000000] nvidia-nvswitch2: SXid (PCI:0000:05:00.0): {t}"
        for t in (text, f"{number}, Severity 1 Engine 28")
    ]
    (found,) = judged(tmp_path, "\n".join([*lines, "[ 11.000000] x", ""]))
    assert (found.code, found.severity) == (code, severity)
    assert "NVSwitch at 0000:05:00" in found.message


def test_sixteen_gpus_are_sixteen_findings(tmp_path: Path) -> None:
    lines = [f"[ 10.{i:06}] NVRM: Xid (PCI:0000:{i:02x}:00): 74, pid=1, name=a, NVLink: fatal error" for i in range(16)]
    assert len(judged(tmp_path, "\n".join(lines) + "\n")) == 16


def test_an_xid_of_an_earlier_boot_is_told_as_such_and_softer(tmp_path: Path) -> None:
    fault = "NVRM: Xid (PCI:0000:4e:00): 79, pid=1, name=a, GPU has fallen off the bus."
    for restart in (
        "-- Boot 0123456789abcdef0123456789abcdef --",
        "-- Reboot --",
        "Nov 21 08:00:00 n1 kernel: Linux version 6.8.0-85-generic (gcc) #85-Ubuntu",
    ):
        (found,) = judged(tmp_path, f"Nov 21 07:00:00 n1 kernel: {fault}\n{restart}\nNov 21 08:00:09 n1 kernel: x\n")
        assert found.severity is Severity.WARNING
        assert "before the last reboot" in found.message
    # Seconds that begin anew are a restart too.
    (found,) = judged(tmp_path, f"[ 9000.000000] {fault}\n[    0.000000] Linux version 6.8\n[   10.000000] x\n")
    assert found.severity is Severity.WARNING


def test_what_xid_154_asked_for_and_was_done_is_no_finding(tmp_path: Path) -> None:
    change = "NVRM: Xid (PCI:0000:4e:00): 154, GPU recovery action changed from"
    asked = f"[ 10.000000] {change} 0x0 (None) to 0x1 (GPU Reset Required)\n"
    (found,) = judged(tmp_path, asked + "[ 11.000000] x\n")
    assert found.code == "GPU009"
    assert "NVIDIA's action: GPU Reset Required" in found.message
    assert not judged(tmp_path, asked + f"[ 20.000000] {change} 0x1 (GPU Reset Required) to 0x0 (None)\n")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NVRM: API mismatch: the client has the version 570.1, but", "VERSION006"),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:762)", "GPU004"),
        ("NVRM: GPU 0000:3b:00.0: GPU does not have the necessary power cables connected.", "GPU039"),
        ("NVRM: The NVIDIA probe routine was not called for 1 device(s).", "GPU002"),
        ("NVRM: The NVIDIA GPU 0000:3b:00.0 has fallen off the bus and is not responding.", "GPU007"),
        ("Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB", "LOG014"),
    ],
)
def test_other_lines_of_the_driver_and_the_kernel(line: str, code: str, tmp_path: Path) -> None:
    assert code in {f.code for f in judged(tmp_path, f"[    5.000000] x\n[    9.000000] {line}\n")}


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build",
        "nvidia: module license 'NVIDIA' taints kernel.",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 234",
        "nvidia 0000:3b:00.0: enabling device (0140 -> 0142)",
        "NVRM: GPU at PCI:0000:3b:00: GPU-0e7c7a4e-0000-0000-0000-000000000000",
        "nvidia-nvswitch0: open (major=510)",
        "pcieport 0000:00:1c.0: AER: Corrected error received: 0000:00:1c.0",
    ],
)
def test_a_healthy_machine_s_log_says_nothing(line: str, tmp_path: Path) -> None:
    assert not judged(tmp_path, f"[    0.000000] Linux version 6.8\n[    9.000000] {line}\n")


@given(st.text(max_size=120), st.integers(1, 10**9))
def test_any_line_is_read(text: str, number: int) -> None:
    log = KernelLog()
    for line in (
        text,
        f"NVRM: Xid (PCI:{text}): {number}",
        f"{text}: SXid (PCI:0000:05:00.0): {number}, {text}",
        f"[{text}] Linux version 6",
    ):
        time_of(line)
        xid_in(line)
        log.take(line, 1)
    log.finish(text)
