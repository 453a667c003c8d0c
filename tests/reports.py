"""Reports for tests of the renderers: a realistic one, and arbitrary ones."""

from __future__ import annotations

from hypothesis import strategies as st

from ddpdoctor.findings import Crashed, Evidence, Finding, Report, Role, Severity, Skipped, Where

CAUSE = Finding(
    message="NCCL_SOCKET_IFNAME=eth9 matches no running interface (eth0, lo)",
    evidence=(Evidence("environ.NCCL_SOCKET_IFNAME", "eth9", "one of eth0, lo"),),
    fix="Name an interface that runs, or unset the variable.",
    fix_command="export NCCL_SOCKET_IFNAME=eth0",
    where=Where(host="node-3", rank=7, gpu=3, file="jobs/train.sbatch", line=12, column=1),
    ranks=(7,),
    severity=Severity.ERROR,
    role=Role.CAUSE,
    code="ENV021",
    name="nccl-socket-ifname-not-found",
    why='NCCL stops at once with "Bootstrap : no socket interface found".',
    help="docs/rules/environ.md#env021",
)
FOLLOWS = Finding(
    message="rank 7 did not join the process group",
    where=Where(rank=7),
    ranks=(7,),
    severity=Severity.ERROR,
    role=Role.CONSEQUENCE,
    caused_by="ENV021",
    code="PROBE001",
    name="rank-missing",
    help="docs/rules/probe.md#probe001",
)
WARNING = Finding(
    message="/dev/shm holds 64 MiB, expected at least 1 GiB",
    fix="Start the container with a larger /dev/shm.",
    fix_command="docker run --shm-size=8g …",
    severity=Severity.WARNING,
    role=Role.CAUSE,
    code="HOST003",
    name="shm-too-small",
    why="Workers die with a bus error.",
)
NOTE = Finding(message="it is late", severity=Severity.NOTE, role=Role.NOISE, code="LOG009", name="late")

REPORT = Report(
    command="check",
    host="node-1",
    started_at="2026-11-21T04:05:06Z",
    seconds=1.9,
    findings=(CAUSE, WARNING, FOLLOWS, NOTE),
    passed=("ENV001", "ENV002", "NET001"),
    skipped=(
        Skipped("GPU001", "no NVIDIA driver"),
        Skipped("GPU002", "no NVIDIA driver"),
        Skipped("NET009", "needs root"),
        Skipped("NET010", "net: no answer within 8 s", unanswered=True),
    ),
    crashed=(Crashed("TOPO001", "KeyError: 'x'"),),
    failures=("facts.json: not JSON",),
)
CLEAN = Report("check", "node-1", "2026-11-21T04:05:06Z", 0.4, passed=("ENV001",))

codes = st.from_regex(r"(ENV|LAUNCH|HOST|NET|GPU|TOPO|VERSION|SCRIPT|PROBE|LOG)[0-9]{3}", fullmatch=True).filter(
    str.isascii
)
texts = st.text(max_size=120) | st.sampled_from(
    [
        "```\n~~~",
        "a|b|c",
        "]]>&<x>",
        "::error::x",
        "\x1b[31mred",
        "\ufffe\x00",
        "\ud800",
        "[bold]x[/]",
        "漢" * 60,
        "x" * 300,
    ]
)
numbers = st.none() | st.integers(0, 10**6)
places = st.builds(
    Where,
    host=st.none() | texts,
    node_rank=numbers,
    rank=numbers,
    local_rank=numbers,
    gpu=numbers,
    peer=st.none() | texts,
    file=st.none() | texts,
    line=numbers,
    column=numbers,
    node=numbers,
)
findings = st.builds(
    Finding,
    message=texts,
    evidence=st.lists(st.builds(Evidence, texts, texts, texts), max_size=8).map(tuple),
    fix=texts,
    fix_command=st.none() | texts,
    where=places,
    ranks=st.lists(st.integers(0, 4096), max_size=20).map(tuple),
    severity=st.sampled_from(Severity),
    role=st.sampled_from(Role),
    caused_by=st.none() | codes,
    code=codes,
    name=st.from_regex(r"[a-z]{1,9}(-[a-z]{1,9}){0,9}", fullmatch=True),
    why=texts,
    help=texts,
)
reports = st.builds(
    Report,
    command=st.sampled_from(["check", "env", "probe"]),
    host=texts,
    started_at=st.just("2026-11-21T04:05:06Z"),
    seconds=st.floats(0, 1e6),
    findings=st.lists(findings, max_size=5).map(tuple),
    passed=st.lists(codes, max_size=5).map(tuple),
    skipped=st.lists(st.builds(Skipped, codes, texts, st.booleans()), max_size=5).map(tuple),
    crashed=st.lists(st.builds(Crashed, codes, texts), max_size=2).map(tuple),
    failures=st.lists(texts, max_size=2).map(tuple),
)
