"""What `ddpdoctor lint` reports for real code: run it over folders of well-known projects and read every finding.

python benchmarks/false_alarms.py FOLDER… [--list]

Each FOLDER is one project: an installed package, an unpacked wheel, a checkout. Prints findings per rule and per 1,000
files for each; --list prints every finding with its line of code, to be read by hand. docs/false-alarms.md has the last table.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from ddpdoctor.app.clock import start_of_command
from ddpdoctor.app.lint_scripts import judge_scripts
from ddpdoctor.app.request import Request
from ddpdoctor.collectors.script import find
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Finding, Report

SECONDS = 300.0
"""For one project."""


def main() -> int:
    """Judge each folder and print the tables."""
    start_of_command()  # of this process: each file gets its own seconds
    folders = [word for word in sys.argv[1:] if not word.startswith("--")]
    if not folders:
        print(__doc__)
        return 2
    total: Counter[tuple[str, str]] = Counter()
    all_files = 0
    print(
        f"{'project':28} {'files':>6} {'lines':>9} {'s':>6} {'error':>6} {'warning':>8} {'note':>6}   per 1,000 files"
    )
    for folder in folders:
        paths = find([folder]).paths
        started = time.perf_counter()
        request = Request(timeout=SECONDS)
        judged = judge_scripts(find([folder]), (), Facts(SCHEMA, "", ""), request)
        report = judged.added_to(Report("lint", "", "", 0.0))
        seconds = time.perf_counter() - started
        rows = Counter(f.worst.value for f in report.findings)
        serious = rows["error"] + rows["warning"]
        lines = sum(Path(path).read_bytes().count(b"\n") for path in paths)
        print(
            f"{Path(folder).name:28} {len(paths):6} {lines:9} {seconds:6.1f} {rows['error']:6} {rows['warning']:8} "
            f"{rows['note']:6}   {1000 * serious / max(len(paths), 1):8.1f} serious",
            flush=True,
        )
        if "--list" in sys.argv:
            for finding in report.findings:
                print(_shown(finding))
        for failure in (*report.failures, *(f"{c.code}: {c.error}" for c in report.crashed)):
            print(f"    {failure}")
        total += Counter((f.code, f.worst.value) for f in report.findings)
        all_files += len(paths)
    print(f"\n{'rule':12} {'severity':8} {'findings':>9} {'per 1,000 files':>16}")
    for (code, severity), count in sorted(total.items()):
        print(f"{code:12} {severity:8} {count:9} {1000 * count / max(all_files, 1):16.2f}")
    print(f"{all_files} files")
    return 0


def _shown(finding: Finding) -> str:
    where = finding.where
    lines = Path(where.file or "").read_text("utf-8", "replace").split("\n") if where.file else [""]
    code = lines[where.line - 1].strip() if where.line and where.line <= len(lines) else ""
    return f"  {finding.worst.value} {finding.code} {where.file}:{where.line}:{where.column}\n    {finding.text}\n    {code}"


if __name__ == "__main__":
    sys.exit(main())
