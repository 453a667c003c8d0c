"""`PYTHONPATH=.:tests python -m chaos --runs 1000 --seed 1`: many runs, one line of JSON per run; see docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from chaos.commands import COMMANDS, QUICK, Command, Materials
from chaos.faults import FAULTS, Fault, chosen
from chaos.running import Runner


def plan(
    number: int, seed: int, commands: tuple[Command, ...] = COMMANDS, kinds: tuple[str, ...] = FAULTS
) -> tuple[Command, Fault]:
    """The command and the fault of one run: all commands in turn, all kinds of faults in turn, moments and sizes at random."""
    source = random.Random(f"{seed}/{number}")
    command = commands[number % len(commands)]
    kind = kinds[(number // len(commands) + 7 * number) % len(kinds)]
    return command, chosen(kind, command, source)


def table(files: list[str]) -> str:
    """Saved lines of runs as a table in Markdown: the runs of each command with each kind of fault."""
    rows = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    counts = Counter((row["command"], row["kind"]) for row in rows)
    kinds = [kind for kind in FAULTS if any((command.name, kind) in counts for command in COMMANDS)]
    lines = [f"| command | {' | '.join(kinds)} | all |", "|---" * (len(kinds) + 2) + "|"]
    for command in COMMANDS:
        own = [counts[command.name, kind] for kind in kinds]
        lines.append(f"| {command.name} | {' | '.join(map(str, own))} | {sum(own)} |")
    columns = [sum(counts[command.name, kind] for command in COMMANDS) for kind in kinds]
    return "\n".join([*lines, f"| all | {' | '.join(map(str, columns))} | {sum(columns)} |"])


def main() -> int:
    """Run, print, count."""
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--command", help="only commands whose name begins with it")
    parser.add_argument(
        "--quick", action="store_true", help="only the commands that start no ranks and take about a second"
    )
    parser.add_argument("--fault", help="only faults whose kind begins with it")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="print a table of saved lines; run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return 0
    commands = tuple(
        each for each in (QUICK if options.quick else COMMANDS) if each.name.startswith(options.command or "")
    )
    kinds = tuple(each for each in FAULTS if each.startswith(options.fault or ""))
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
        (Path(folder) / "materials").mkdir()
        Path(folder).chmod(0o755)
        materials = Materials(Path(folder) / "materials")
        runner = Runner(materials, Path(folder))
        for number in range(options.first, options.first + options.runs):
            command, fault = plan(number, options.seed, commands, kinds)
            outcome = runner.run(command, fault, runner.usual(command))
            counts["runs"] += 1
            counts["failed"] += bool(outcome.problems)
            row = {
                "number": number,
                "command": command.name,
                "kind": fault.kind,
                "fault": outcome.fault,
                "code": outcome.code,
            }
            row |= {"seconds": round(outcome.seconds, 2), "problems": outcome.problems}
            if outcome.problems:
                row["errors"] = outcome.errors
            print(json.dumps(row), flush=True)
    print(json.dumps(counts), file=sys.stderr)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
