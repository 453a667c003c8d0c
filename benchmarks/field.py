"""How often `ddpdoctor triage` names the first cause of real failed logs, and who, and what it says about healthy ones.

    python benchmarks/field.py FOLDER [--list]            FOLDER/ID/log.txt, each with an expect.json beside it
    python benchmarks/field.py field_cases.jsonl [--list] short quotations with their expectations, one a line
    python benchmarks/field.py labels.jsonl [--list]      GPUAlert's public corpus: github.com/Parv-01/gpualert-eval

Prints each rate with the 95 % interval of Wilson; --list also prints every log that is judged otherwise than expected.
docs/accuracy.md has the last table. expect.json: `first` (the names of rules that state the cause; further ones say the same),
`quote` (words that the finding must show; null if none), `who` ("rank 3", "host n7", both, "none", or null if the text does
not tell), `healthy` (nothing may be reported), `source` (where the log was published).
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Finding, Report, Role, Severity

Z = 1.96
ALIKE = {
    "worker-traceback-missing": ("worker-ended-without-traceback",),
    "host-out-of-memory": ("memory-limit-low",),
    "world-size-mismatch": ("rendezvous-incomplete",),
}
"""Names of causes, and those that say the same about a log."""
CLASSES: dict[str, tuple[str, ...]] = {
    "assertion": ("uncaught-exception",),
    "cuda_oom": ("gpu-out-of-memory",),
    "cuda_runtime": ("asynchronous-cuda-error", "index-out-of-range-on-device"),
    "device_mismatch": ("tensors-on-different-devices",),
    "div_zero": ("uncaught-exception",),
    "file_not_found": (
        "python-file-missing",
        "missing-shared-file",
        "checkpoint-read-before-written",
        "script-not-found",
    ),
    "missing_module": ("python-module-missing", "extension-abi-mismatch"),
    "nan_loss": ("loss-is-nan",),
    "nccl": ("collective-timeout", "nccl-error-without-reason", "nccl-remote-error", "store-connection-closed"),
    "oom_killer": ("host-out-of-memory", "worker-killed-by-sigkill"),
    "permission": ("python-permission-denied",),
    "ram_oom": ("host-out-of-memory", "python-memory-error"),
    "runtime_error": ("uncaught-exception", "no-kernel-image"),
    "segfault": ("worker-ended-without-traceback",),
    "traceback": ("uncaught-exception", "checkpoint-entry-missing"),
}
"""GPUAlert's labels, and our causes that they cover."""

PREFIX = re.compile(r"\[rank\d+\]:? ?|^(?:\d{1,2}|localhost|[\d.]{7,15}): ")
"""What a rank, srun or pdsh puts before a line; an expectation may quote it."""
MOST_QUOTED = 150
LEAST = 40
"""A finding shortens long lines: so many characters of an expected line must be there."""

Case = tuple[str, str, dict[str, Any]]
"""A name, the text of a log, and what is expected."""


def main() -> int:
    """Judge each case and print the rates."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if len(words) != 1:
        print(__doc__)
        return 2
    counts: Counter[str] = Counter()
    for name, text, expected in cases_of(Path(words[0])):
        problems = judged(name, text, expected, counts)
        if problems and "--list" in sys.argv:
            print(f"{name}: {'; '.join(problems)}")
    for title, part, whole in (
        ("failed logs that pass", "passed", "failed"),
        ("first cause", "first", "failed"),
        ("who", "who", "who known"),
        ("false alarms on healthy logs", "alarms", "healthy"),
    ):
        print(f"{title:30} {rate(counts[part], counts[whole])}")
    return 0


def cases_of(path: Path) -> Iterator[Case]:
    """The cases of a folder or of a file with one JSON object a line; of logs that differ only in numbers, one."""
    if path.is_dir():
        for folder in sorted(each.parent for each in path.glob("*/expect.json")):
            expected = json.loads((folder / "expect.json").read_text())
            yield folder.name, (folder / "log.txt").read_text(errors="replace"), expected
        return
    seen = set()
    for each in map(json.loads, path.read_text().splitlines()):
        if "log_path" not in each:
            yield each["id"], each["text"], each
            continue
        text = (path.parent.parent / each["log_path"]).read_text(errors="replace")
        masked = each["mode"], re.sub(r"0x[0-9a-f]+|\d+", "#", text)
        if masked not in seen:
            seen.add(masked)
            yield each["id"], text, {"first": CLASSES[each["mode"]], "healthy": False}


def judged(name: str, text: str, expected: dict[str, Any], counts: Counter[str]) -> list[str]:
    """What is wrong about the report on one log; `counts` get what is right."""
    report = report_on(text)
    problems = []
    if expected.get("healthy"):
        counts["healthy"] += 1
        alarms = [f.name for f in report.findings if f.worst is not Severity.NOTE]
        counts["alarms"] += bool(alarms)
        return [f"false alarm {', '.join(alarms)}"] if alarms else []
    first = next((f for f in report.findings if f.role is Role.CAUSE), None)
    counts["failed"] += 1
    counts["passed"] += report.verdict.value == "pass"
    problems += ["passed"] if report.verdict.value == "pass" else []
    is_first = first is not None and names_the_cause(first, expected)
    counts["first"] += is_first
    problems += [] if is_first else [f"{first.name if first else 'nothing'} instead of {'|'.join(expected['first'])}"]
    if expected.get("who"):
        counts["who known"] += 1
        is_who = first is not None and names_who(first, expected["who"])
        counts["who"] += is_who
        problems += [] if is_who else [f"not {expected['who']}"]
    return problems


def report_on(text: str) -> Report:
    """The report of triage on one file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.txt")
        path.write_text(text)
        return triaged([str(path)], Request(), started=time.monotonic())[0]


def names_the_cause(first: Finding, expected: dict[str, Any]) -> bool:
    """Whether the first finding is one of the expected causes and shows the expected words; any cause where none is expected."""
    names = {*expected["first"]}.union(*(ALIKE.get(name, ()) for name in expected["first"]))
    shown = " ".join(
        (first.quote, first.text, first.why, str(first.where.file), *(each.seen for each in first.evidence))
    )
    quote = _plain(expected.get("quote") or "")
    is_shown = quote in _plain(shown) or (len(quote) > LEAST and quote[:MOST_QUOTED] in _plain(shown))
    return is_shown and (first.name in names or (not names and bool(quote)))


def _plain(text: str) -> str:
    """A line without what ranks and loggers put before it, in small letters: a finding quotes the message alone."""
    return " ".join(PREFIX.sub("", text).lower().split())


def names_who(first: Finding, who: str) -> bool:
    """Whether the first finding names this process: in `who` (the first of several), or as the only one to blame.

    `who` may name a rank, a host, a pod, a process id or a GPU, or several of them: all must be right. With "none", nobody
    may be blamed.
    """
    ranks = {*first.ranks, first.where.rank} - {None}
    if who == "none":
        return not ranks
    culprit = first.culprit
    known: dict[str, set[str]] = {
        "rank": {str(rank) for rank in ranks} if len(ranks) == 1 else set(),
        "pid": set(),
        "GPU": {str(first.where.gpu)},
    }
    hosts = {first.where.host or ""}
    if not ranks:
        known["rank"] |= {str(first.where.local_rank)}
    if culprit is not None:
        known["rank"] |= {str(culprit.rank)} if culprit.rank is not None else {str(culprit.local_rank)}
        known["pid"] |= {str(culprit.pid)}
        known["GPU"] |= {(culprit.gpu or "").removesuffix(".0")}
        hosts |= {culprit.host or ""}
    for kind, name in re.findall(r"(rank|pid|GPU) (\S+)", who):
        if name not in known[kind]:
            return False
    named = re.search(r"(?:host|pod) (\S+)", who) or re.fullmatch(r"([a-z]+-\d+)", who)
    return named is None or any(same_host(host, name) for host in hosts for name in named[1].split("|"))


def same_host(one: str, other: str) -> bool:
    """Whether two names, of which one may have its domain, are the same host's."""
    return bool(one) and one.partition(".")[0] == other.partition(".")[0]


def rate(part: int, whole: int) -> str:
    """`152/161 (94.4 %, 89.7 to 97.0)`: with the interval of Wilson for 95 %."""
    if not whole:
        return "0/0"
    share = part / whole
    middle = (share + Z * Z / (2 * whole)) / (1 + Z * Z / whole)
    half = Z * math.sqrt(share * (1 - share) / whole + Z * Z / (4 * whole * whole)) / (1 + Z * Z / whole)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return f"{part}/{whole} ({100 * share:.1f} %, {100 * low:.1f} to {100 * high:.1f})"


if __name__ == "__main__":
    sys.exit(main())
