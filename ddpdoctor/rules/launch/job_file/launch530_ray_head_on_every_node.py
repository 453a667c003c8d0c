"""LAUNCH530: a Ray head on every node."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.job_file import FileCommand, JobFile, TextSpan
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import where


@cause("LAUNCH530", "ray-head-on-every-node", Severity.ERROR)
def ray_head_on_every_node(job_file: JobFile) -> Iterator[Finding]:
    """`ray start --head` runs on more than one node of the job.

    ## Why it matters
    Each head is a Ray cluster of its own with the GPUs of one node. The trainer connects to one of them and waits for
    resources that this cluster does not have.

    ## Fix
    Start the head on one node only.

    Run `ray start --address=HEAD:6379` on the others.

    ## Example
        error[LAUNCH530]: ray start --head runs on 4 nodes

        # before
        srun ray start --head --port=6379 --block &

        # after
        srun --nodes=1 --ntasks=1 -w "$HEAD" ray start --head --port=6379 --block &
        srun --nodes=3 --ntasks=3 --exclude="$HEAD" ray start --address="$HEAD:6379" --block &
    """
    heads: dict[TextSpan, list[FileCommand]] = {}
    for command in job_file.programs:
        if _is_head(command.words) and command.is_certain:
            heads.setdefault(command.span, []).append(command)
    for span, commands in heads.items():
        hosts = {command.host for command in commands}
        if len(hosts) > 1:
            yield Finding(
                f"ray start --head runs on {len(hosts)} nodes",
                (Evidence("job_file.programs", f"{len(hosts)} nodes", "one node"),),
                where=where(job_file, span.start),
                label="start one head only",
            )


def _is_head(words: tuple[str, ...]) -> bool:
    return words[0].rpartition("/")[2] == "ray" and words[1:2] == ("start",) and "--head" in words
