"""Everything that only a GPU can show, in one command: `python tests/gpu/run.py FOLDER` (`make gpu`).

It needs an NVIDIA driver, a torch with CUDA, and no network; packages that are missing come from a folder of wheels (--wheels).
It ends within `--seconds` (520), whatever hangs, and leaves FOLDER with all outputs, `results.json`, `summary.md`, one archive
of everything, and `fixtures/` without host names, serial numbers, and UUIDs. `--status FILE` writes the summary into
docs/gpu-status.md.
Without a GPU it runs as far as it goes: jobs use Gloo on the CPU, and every step that needs the GPU says that it was not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import scenarios
from scenarios import ROOT, Scenario, with_doctor

WHEELS = ("tree-sitter", "tree-sitter-bash", "zstandard")
"""Packages of ddpdoctor that images with torch seldom have. `pip download --no-deps` them, and give the folder as --wheels."""
BEGIN, END = "<!-- tests/gpu/run.py: begin -->", "<!-- tests/gpu/run.py: end -->"
SMI_SECONDS, NVML_SECONDS = 20.0, 60.0
"""Deadlines of one call of nvidia-smi, and of all NVML queries: a GPU that hangs answers neither."""
SMI = (
    ("nvidia-smi.txt", ()),
    ("nvidia-smi-q.txt", ("-q",)),
    ("nvidia-smi-q.xml", ("-q", "-x")),
    ("nvidia-smi-topo-m.txt", ("topo", "-m")),
    ("nvidia-smi-topo-p2p.txt", ("topo", "-p2p", "r")),
    ("nvidia-smi-nvlink-s.txt", ("nvlink", "-s")),
)
FACTS = ("gpu", "topo", "host", "net", "versions", "environ")
LOST = (
    *("LOG001", "LOG004", "LOG005", "LOG006", "LOG021", "LOG503", "LOG504", "SCRIPT024", "SCRIPT025", "SCRIPT030"),
    *("PROBE004", "PROBE005", "PROBE006", "PROBE007", "PROBE008", "PROBE009"),
)
"""What a job may be told that lost a rank or waits for one."""
SCENARIOS = (
    Scenario("collectives", 1),
    Scenario("collectives", 2),
    Scenario("collectives", 4),
    Scenario("collectives", 8, seconds=60.0),
    Scenario("lazy", 2),
    Scenario("exception", 2, ("PROBE006", "LOG500")),
    Scenario("skip", 2, LOST),
    Scenario("shape", 2, LOST),
    Scenario("stopped-rank", 2, LOST),
    Scenario("killed-rank", 2, LOST),
)
GPU_SCENARIOS = (
    Scenario("wrong-ordinal", 1, ("LAUNCH023", "SCRIPT001", "LOG011", "ENV063")),
    Scenario("collectives", 2, ("GPU005", "LAUNCH023", "LOG020"), shares_host=True),
)


@dataclass
class Step:
    """One step and what came of it. `state` is "ok", "differs", "failed" or "not run"."""

    name: str
    state: str = "not run"
    seconds: float = 0.0
    detail: str = ""


@dataclass
class Run:
    """The whole run: its folder, its budget in seconds, and its steps."""

    folder: Path
    until: float
    has_gpu: bool
    steps: list[Step] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()

    def step(self, name: str, work: Callable[[], tuple[str, str]], needs: float = 5.0) -> None:
        """Do one piece of work, which gives its state and detail, unless less than `needs` seconds are left."""
        step = Step(name)
        self.steps.append(step)
        if self.left < needs:
            step.detail = f"{max(self.left, 0):.0f} s left, {needs:.0f} s needed"
            return
        started = time.monotonic()
        try:
            step.state, step.detail = work()
        except Exception as error:  # a step that fails leaves the others: it is in the results with its traceback
            step.state, step.detail = "failed", f"{type(error).__name__}: {error}"
            (self.folder / f"{name.replace(' ', '-').replace('/', '-')}.traceback.txt").write_text(
                traceback.format_exc()
            )
        step.seconds = time.monotonic() - started
        print(f"{step.state:8} {step.name} ({step.seconds:.1f} s) {step.detail}", flush=True)

    def command(self, name: str, words: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a command with a deadline; its output is kept as NAME.txt."""
        try:
            done = subprocess.run(
                words,
                env=with_doctor(),
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=min(seconds, max(self.left, 1.0)),
            )
        except subprocess.TimeoutExpired as late:
            done = subprocess.CompletedProcess(words, 124, str(late.stdout or ""), f"no end within {seconds:.0f} s")
        (self.folder / f"{name}.txt").write_text(
            f"$ {' '.join(words)}\n{done.stdout}{done.stderr}exit {done.returncode}\n"
        )
        return done


def main() -> int:
    """Run all steps and write the results; the exit code is 1 where a step failed or differs."""
    options = _options()
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.wheels:
        _install(Path(options.wheels), folder)
    has_gpu = (
        shutil.which("nvidia-smi") is not None and _prints("import torch; print(torch.cuda.is_available())") == "True"
    )
    run = Run(folder, time.monotonic() + options.seconds, has_gpu)
    if options.jobs != "only":
        examine_machine(run)
    if options.jobs != "none":
        names = {name for name in options.only.split(",") if name}
        play_jobs(run, options.most_ranks, options.timeout, names)
        if not names:
            probe_ranks(run, options.most_ranks)
    run.step("scrubbed logs", lambda: _scrubbed(run))
    write_results(run, Path(options.status) if options.status else None)
    return 1 if any(step.state in ("failed", "differs") for step in run.steps) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the results go")
    parser.add_argument("--wheels", help="a folder of wheels to install first, without a network")
    parser.add_argument("--seconds", type=float, default=520.0, help="the time limit of everything (default 520)")
    parser.add_argument("--timeout", type=float, default=scenarios.TIMEOUT_SECONDS, help="the process groups' timeout")
    parser.add_argument("--most-ranks", type=int, default=8, help="the most ranks of one job (default 8)")
    parser.add_argument("--only", default="", metavar="NAME,…", help="run only these jobs")
    parser.add_argument("--jobs", choices=("all", "none", "only"), default="all", help="whether real jobs are run")
    parser.add_argument("--status", help="write the summary between its marks in this file (docs/gpu-status.md)")
    return parser.parse_args()


def _install(wheels: Path, folder: Path) -> None:
    """Unpack the wheels into the folder and put it on PYTHONPATH."""
    site = folder / "site"
    found = sorted(map(str, wheels.glob("*.whl")))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site), *found]
    subprocess.run(command, check=True, timeout=120)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))


def _prints(code: str) -> str:
    """What a line of Python prints; "" where it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=with_doctor(), capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def examine_machine(run: Run) -> None:
    """What ddpdoctor reads of this machine, held against nvidia-smi."""
    run.step("environment", lambda: ("ok", _environment(run)))
    if run.has_gpu:
        run.step("nvidia-smi", lambda: _smi(run))
    else:
        run.steps.append(Step("nvidia-smi", detail="no GPU, or a torch without CUDA"))
    run.step("NVML queries", lambda: _nvml(run), needs=20.0)
    for words in (("collect", "-o", str(run.folder / "facts.json")), ("gpus",), ("topo",), ("check", "--no-probe")):
        run.step(f"ddpdoctor {words[0]}", lambda words=words: _doctor(run, words), needs=20.0)  # type: ignore[misc]
    if run.has_gpu:
        run.step("topo cell by cell", lambda: _cells(run))
        run.step("tests/gpu", lambda: _pytest(run), needs=60.0)
    else:
        run.steps += [
            Step(name, detail="no GPU, or a torch without CUDA") for name in ("topo cell by cell", "tests/gpu")
        ]
    run.step("fixtures", lambda: _fixtures(run))


def _environment(run: Run) -> str:
    code = (
        "import torch, json; c = torch.cuda.is_available(); print(json.dumps([torch.__version__, "
        "torch.cuda.get_device_name(0) if c else None, '.'.join(map(str, torch.cuda.nccl.version())) if c else None]))"
    )
    torch, gpu, nccl = json.loads(_prints(code) or "[null, null, null]")
    query = ["--query-gpu=driver_version", "--format=csv,noheader"]
    driver = (smi_output(query, min(SMI_SECONDS, run.left))[1] if run.has_gpu else "").split()
    known = {
        "python": platform.python_version(),
        "torch": torch,
        "NCCL": nccl,
        "GPU": gpu,
        "driver": driver[0] if driver else None,
    }
    (run.folder / "environment.json").write_text(json.dumps({**known, "kernel": platform.release()}, indent=1))
    run.command("pip-list", [sys.executable, "-m", "pip", "list"], 60)
    return ", ".join(f"{name} {value}" for name, value in known.items() if value)


def _smi(run: Run) -> tuple[str, str]:
    failed = []
    for name, words in SMI:
        code, text = smi_output(words, min(SMI_SECONDS, run.left))
        (run.folder / name).write_text(text)
        failed += [] if code == 0 else [f"{' '.join(words)}: exit {code}"]
    return ("failed" if len(failed) == len(SMI) else "ok", "; ".join(failed))


def smi_output(words: Sequence[str], seconds: float) -> tuple[int, str]:
    """The exit code and output of nvidia-smi: 124 if it did not end in time, as on a GPU that hangs, 127 if there is none."""
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        return 124, ""
    except FileNotFoundError:
        return 127, ""
    return done.returncode, done.stdout


def _nvml(run: Run) -> tuple[str, str]:
    """The time of each NVML query: the collector's child prints a line before each call and after it."""
    command = [sys.executable, "-m", "ddpdoctor.collectors.nvml"]
    took: dict[str, list[float]] = {}
    errors: dict[str, int] = {}
    with subprocess.Popen(command, env=with_doctor(), cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name, since = "", time.monotonic()
        late = threading.Timer(min(NVML_SECONDS, max(run.left, 1.0)), child.kill)
        late.start()
        try:
            for line in child.stdout:
                kind, *rest = json.loads(line)
                now = time.monotonic()
                if kind == "?":
                    name, since = str(rest[0]), now
                elif name:
                    took.setdefault(name, []).append(now - since)
                    name = ""
                if kind == "!":
                    errors[str(rest[-1])] = errors.get(str(rest[-1]), 0) + 1
        finally:
            late.cancel()
    if child.returncode == -signal.SIGKILL:
        errors[f"no answer to {name or 'the first call'}"] = 1
    rows = sorted(((max(each), len(each), query) for query, each in took.items()), reverse=True)
    text = "".join(f"{longest * 1000:9.2f} ms  {count:4}x  {query}\n" for longest, count, query in rows)
    (run.folder / "nvml-times.txt").write_text(
        text + "".join(f"{count:4}x  {code}\n" for code, count in errors.items())
    )
    total = sum(sum(each) for each in took.values())
    said = f"{sum(map(len, took.values()))} calls in {total * 1000:.0f} ms; errors: {errors or 'none'}"
    state = "failed" if child.returncode == -signal.SIGKILL else "ok" if run.has_gpu else "not run"
    return (state, said if run.has_gpu else f"no driver: {said}")


def _doctor(run: Run, words: tuple[str, ...]) -> tuple[str, str]:
    done = run.command(f"ddpdoctor-{words[0]}", [sys.executable, "-m", "ddpdoctor", *words], 60)
    crashed = "internal error" in done.stderr or "crashed" in done.stdout or done.returncode not in (0, 1)
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
    return ("failed" if crashed else "ok", last.strip())


def _cells(run: Run) -> tuple[str, str]:
    """The cells of the matrix of GPUs, ours and nvidia-smi's; headers and all other columns word by word."""
    ours = (run.folder / "ddpdoctor-topo.txt").read_text().splitlines()[1:]
    smi = (run.folder / "nvidia-smi-topo-m.txt").read_text().splitlines()

    def rows(lines: list[str]) -> dict[str, list[str]]:
        return {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("GPU", "NIC"))}

    mine, theirs = rows(ours), rows(smi)
    wrong = [
        f"{name}[{at}]: {cell!r}, nvidia-smi {other!r}"
        for name, row in theirs.items()
        for at, (cell, other) in enumerate(zip(mine.get(name, []) + [""] * len(row), row, strict=False))
        if cell != other
    ]
    return ("differs" if wrong else "ok", "; ".join(wrong[:5]) or f"{sum(map(len, theirs.values()))} cells equal")


def _pytest(run: Run) -> tuple[str, str]:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu"]
    done = run.command("pytest", words, 150)
    return ("ok" if done.returncode == 0 else "failed", (done.stdout.strip().splitlines() or [""])[-1])


def _fixtures(run: Run) -> tuple[str, str]:
    """The facts of this machine by section, as `collect` writes them: secrets, host names, serial numbers and UUIDs replaced."""
    facts = json.loads((run.folder / "facts.json").read_text())
    folder = run.folder / "fixtures"
    folder.mkdir(exist_ok=True)
    written = [section for section in FACTS if facts.get(section) is not None]
    for section in written:
        (folder / f"{section}.json").write_text(json.dumps(facts[section], indent=1) + "\n")
    return "ok", ", ".join(written)


def _scrubbed(run: Run) -> tuple[str, str]:
    """The logs of the jobs as fixtures: this host's name, UUIDs of GPUs and serial numbers are replaced."""
    host = re.escape(platform.node().partition(".")[0])
    uuid = r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    marks = ((rf"\b{host}\b", "node0"), (uuid, "GPU-00000000-0000-0000-0000-000000000000"))
    folder, count = run.folder / "fixtures" / "jobs", 0
    for log in sorted(run.folder.glob("jobs/*/rank*.log")):
        text = log.read_text(errors="replace")
        for pattern, mark in marks:
            text = re.sub(pattern, mark, text)
        place = folder / log.parent.name / log.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        count += 1
    return ("ok" if count else "not run", f"{count} logs")


def play_jobs(run: Run, most_ranks: int, timeout: float, names: set[str]) -> None:
    """Real jobs, healthy and disturbed, and what ddpdoctor says of each; all, or those with these names."""
    folder = run.folder / "jobs"
    for scenario in (*SCENARIOS, *(GPU_SCENARIOS if run.has_gpu else ())):
        if scenario.ranks > most_ranks or (names and scenario.name not in names):
            continue
        name = f"{scenario.name}-{scenario.ranks}{'-one-host' if scenario.shares_host else ''}"
        run.step(f"job {name}", lambda s=scenario, n=name: _play(s, folder / n, timeout), needs=scenario.seconds)  # type: ignore[misc]
    if not run.has_gpu:
        run.steps += [Step(f"job {each.name}", detail="no GPU, or a torch without CUDA") for each in GPU_SCENARIOS]


def _play(scenario: Scenario, folder: Path, timeout: float) -> tuple[str, str]:
    outcome = scenarios.play(scenario, folder, timeout)
    hang = f"; hang: {', '.join(outcome.hang) or 'nothing'}" if scenario.name in scenarios.WATCHED else ""
    detail = f"exit {outcome.exits}; triage: {', '.join(outcome.triage) or 'nothing'}{hang}{outcome.problem}"
    return ("ok" if outcome.is_as_expected else "differs", detail)


def probe_ranks(run: Run, most_ranks: int) -> None:
    """The probe with one rank and with several that share the GPU."""
    for count in (1, 2, 4):
        if count <= most_ranks:
            run.step(f"probe with {count} ranks", lambda n=count: _probe(run, n), needs=40.0)  # type: ignore[misc]


def _probe(run: Run, count: int) -> tuple[str, str]:
    report = run.folder / f"probe-{count}.json"
    one = f"NCCL_HOSTID=host$RANK LOCAL_RANK=0 exec {sys.executable} -m ddpdoctor.probe --format json --output {report}.$RANK"
    words = ["--standalone", f"--nproc-per-node={count}", "--no-python", "sh", "-c", one]
    done = run.command(f"probe-{count}", [sys.executable, "-m", "torch.distributed.run", *words], 60)
    first = Path(f"{report}.0")
    if not first.exists():
        return "failed", f"exit {done.returncode}, no report"
    found = json.loads(first.read_text())
    errors = [each["code"] for each in found["findings"] if each["severity"] == "error"]
    return ("differs" if errors or found["verdict"] == "incomplete" else "ok", f"{found['verdict']} {' '.join(errors)}")


def write_results(run: Run, status: Path | None) -> None:
    """results.json, summary.md, the archive, and the part of the status page."""
    known = run.folder / "environment.json"
    environment = json.loads(known.read_text()) if known.exists() else {}
    text = _summary(run, environment)
    (run.folder / "summary.md").write_text(text)
    results = {"environment": environment, "steps": [vars(step) for step in run.steps]}
    (run.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    with tarfile.open(run.folder / "results.tar.gz", "w:gz") as archive:
        for path in sorted(run.folder.iterdir()):
            if path.name not in ("site", "results.tar.gz"):
                archive.add(path, path.name)
    if status is not None:
        page = status.read_text()
        before, _, rest = page.partition(BEGIN)
        if not rest:
            raise SystemExit(f"error: {status}: no line {BEGIN!r}")
        status.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")
    print(text)


def _summary(run: Run, environment: dict[str, str | None]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in environment.items() if value)
    day = time.strftime("%Y-%m-%d")
    where = "" if run.has_gpu else " **without a GPU**: nothing here says anything about NCCL or NVML"
    rows = "".join(
        f"| {each.name} | {each.state} | {each.seconds:.1f} | {each.detail.replace('|', '/')} |\n" for each in run.steps
    )
    head = f"Run on {day}{where}: {machine or 'machine not examined'}"
    return f"{head}\n\n| step | result | s | |\n| --- | --- | --- | --- |\n{rows}"


if __name__ == "__main__":
    sys.exit(main())
