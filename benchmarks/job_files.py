"""What `ddpdoctor lint` reports for real job files: shell scripts, sbatch files and manifests of public repositories.

python benchmarks/job_files.py FOLDER… [--list]

Prints errors and warnings per 100 files, per rule, and the seconds per file, side by side with shellcheck if it is
installed; --list prints every finding with its line, to be read by hand. docs/job-files.md has the last table and the
repositories.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from ddpdoctor.app.clock import start_of_command
from ddpdoctor.app.lint import LintInputs, lint_inputs
from ddpdoctor.app.request import Request
from ddpdoctor.findings import Finding, Report, Severity

SECONDS = 60.0
"""For one file."""
KINDS = (".sh", ".bash", ".sbatch", ".slurm", ".job", ".pbs", ".yaml", ".yml")
MOST_SECONDS = 2.0


def main() -> int:
    """Judge each file and print the tables; 1 if a file took longer than the limit or a rule crashed."""
    start_of_command()  # of this process: each file gets its own seconds
    folders = [Path(word) for word in sys.argv[1:] if not word.startswith("--")]
    if not folders:
        print(__doc__)
        return 2
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in KINDS and path.is_file())
    rules: Counter[tuple[str, str]] = Counter()
    seconds, understood, crashed = [], 0, 0
    for path in paths:
        started = time.perf_counter()
        report = _report(path)
        seconds.append(time.perf_counter() - started)
        understood += all(each.is_understood for each in report.inputs if each.path == str(path))
        crashed += len(report.crashed)
        own = [finding for finding in report.findings if _is_serious(finding) and _is_in(finding, path)]
        rules.update((finding.code, finding.worst.value) for finding in own)
        if "--list" in sys.argv:
            for finding in own:
                print(_shown(finding, path), flush=True)
            for crash in report.crashed:
                print(f"  crashed: {crash.code} {crash.error} {path}")
    _table(rules, len(paths), understood)
    print(
        f"seconds per file: median {statistics.median(seconds):.3f}, most {max(seconds):.2f}; {crashed} crashed rules"
    )
    _shellcheck([path for path in paths if path.suffix not in (".yaml", ".yml")])
    return int(crashed > 0 or max(seconds) > MOST_SECONDS)


def _report(path: Path) -> Report:
    request = Request(timeout=SECONDS)
    return lint_inputs(request, LintInputs(files=[str(path)]))[0]


def _is_serious(finding: Finding) -> bool:
    return finding.worst is not Severity.NOTE


def _is_in(finding: Finding, path: Path) -> bool:
    """About the job file, not about a training script beside it."""
    return finding.where.file in (None, str(path))


def _table(rules: Counter[tuple[str, str]], files: int, understood: int) -> None:
    print(f"\n{'rule':12} {'severity':8} {'findings':>9} {'per 100 files':>14}")
    for (code, severity), count in sorted(rules.items()):
        print(f"{code:12} {severity:8} {count:9} {100 * count / max(files, 1):14.2f}")
    for severity in ("error", "warning"):
        count = sum(number for (_, each), number in rules.items() if each == severity)
        print(f"{severity + 's':21} {count:9} {100 * count / max(files, 1):14.2f}")
    print(f"{files} files, {understood} with a launch that was understood")


def _shellcheck(paths: list[Path]) -> None:
    """The same count for shellcheck, at its severities error and warning."""
    program = shutil.which("shellcheck")
    if program is None:
        print("shellcheck: not installed")
        return
    counts: Counter[str] = Counter()
    for path in paths:
        done = subprocess.run(
            [program, "-S", "warning", "-f", "json", path], capture_output=True, text=True, check=False, timeout=SECONDS
        )
        counts.update(each["level"] for each in json.loads(done.stdout or "[]"))
    shares = ", ".join(f"{level}s {100 * counts[level] / max(len(paths), 1):.1f}" for level in ("error", "warning"))
    print(f"shellcheck, per 100 of {len(paths)} shell files: {shares}")


def _shown(finding: Finding, path: Path) -> str:
    where = finding.where
    lines = path.read_text("utf-8", "replace").split("\n")
    code = lines[where.line - 1].strip() if where.line and where.line <= len(lines) else ""
    return f"  {finding.worst.value} {finding.code} {path}:{where.line}:{where.column}\n    {finding.text}\n    {code:.200}"


if __name__ == "__main__":
    sys.exit(main())
