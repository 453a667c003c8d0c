"""HOST007 as lines show it: the ranks of a node and the CPUs that a scheduler, a container or a wrapper leaves them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.host import count_cpus
from ddpdoctor.facts.launch.programs import Launcher
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.facts.launch.words import Word, is_known
from ddpdoctor.findings import Finding, Severity, Where
from ddpdoctor.launch.container import container_of
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.host import host007_cpu_oversubscribed
from ddpdoctor.rules.launch.pointing import point, shown
from ddpdoctor.rules.launch.scheduler.counting import number, option
from ddpdoctor.rules.lines.ranks import ranks_here

_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@on_lines(host007_cpu_oversubscribed.check)
def crowded(launch: Launch) -> Iterator[Finding]:
    """More ranks and OpenMP threads than CPUs."""
    for line in launch.lines:
        found = next(_limits(line), None)
        if found is None:
            continue
        cpus, ranks, word, source = found
        threads = _threads(line)
        if ranks is None or cpus < 1 or ranks * threads <= cpus:
            continue
        told = f" with {threads} OpenMP threads each" if threads > 1 else ""
        there = f"{cpus} CPU{'s' * (cpus > 1)} for {ranks} rank{'s' * (ranks > 1)}{told}"
        text = f"{source} leaves {there}: expected {ranks * threads} or more"
        finding = point(launch, line, word, text, f"at least {ranks * threads} CPUs", severity=Severity.WARNING)
        mark = None if line.pod is None else line.pod.cpus_at
        yield (
            finding
            if mark is None
            else Finding(
                text,
                finding.evidence,
                where=Where(file=line.file, line=mark.line, column=mark.column),
                severity=Severity.WARNING,
            )
        )


def _limits(line: Line) -> Iterator[tuple[int, int | None, Word | None, str]]:
    """CPUs, the ranks that share them, the word that says so: what stands nearest to the ranks counts."""
    ranks = ranks_here(line)
    if line.pod is not None:
        if line.pod.cpus is not None:
            yield line.pod.cpus, ranks, None, "the container's limit"
        return
    for word, source in _pinned(line):
        yield count_cpus(word.text.rpartition("=")[2]), ranks, word, source
    box = container_of(line)
    if box is not None:
        if box.cpu_set is not None and _LIST.fullmatch(box.cpu_set.value or ""):
            yield count_cpus(box.cpu_set.value or ""), ranks, box.cpu_set.value_word, shown(box.cpu_set.value_word)
        if box.cpus is not None and re.fullmatch(r"\d+(\.\d+)?", box.cpus.value or ""):
            yield int(float(box.cpus.value or "0")), ranks, box.cpus.value_word, shown(box.cpus.word)
        return
    srun = line.layer(Launcher.SRUN)
    if srun is None or line.layer(Launcher.CONTAINER) is not None:
        return
    for options in (srun, line.batch):
        each: Given | None = option(options, ("-c", "--cpus-per-task"))
        if each is not None and is_known(each.value) and (cpus := number(each)) is not None:
            own = ranks if line.starter is not None else 1
            yield cpus, own, each.value_word if each.value_word in line.argv else None, f"--cpus-per-task={cpus}"
            return


def _pinned(line: Line) -> Iterator[tuple[Word, str]]:
    """The lists of CPUs that taskset and numactl are given."""
    for layer in reversed(line.layers):
        if layer.name == "taskset" and any(w.text.startswith(("-c", "--cpu-list", "-ac")) for w in layer.own):
            listed = next((w for w in layer.own[1:] if _LIST.fullmatch(w.text)), None)
            if listed is not None:
                yield listed, f"taskset -c {listed.text}"
        given = option(layer, ("-C", "--physcpubind")) if layer.name == "numactl" else None
        if given is not None and _LIST.fullmatch(given.value or ""):
            yield given.value_word, f"numactl {shown(given.word)}"


def _threads(line: Line) -> int:
    text = line.environ.variables.get("OMP_NUM_THREADS", "")
    return int(text) if re.fullmatch(r"[1-9]\d{0,3}", text) else 1
