"""The ranks that srun or mpirun starts without a launcher of torch, as one statement of a job file starts them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddpdoctor.facts.shell_text import TextSpan
from ddpdoctor.facts.submission import Submission, Task
from ddpdoctor.rules.launch.job_file.places import shell_of

__all__ = ["RankGroup", "rank_groups"]


@dataclass(frozen=True, slots=True)
class RankGroup:
    """All ranks of one statement that certainly runs. `starter` is srun or mpirun."""

    tasks: tuple[Task, ...]
    starter: str

    def numbers(self, name: str) -> list[int] | None:
        """The values of a variable, rank by rank; None if one of them is not a known number."""
        texts = [task.line.environ.variables.get(name, "") for task in self.tasks]
        return [int(text) for text in texts] if all(re.fullmatch(r"\d{1,6}", text) for text in texts) else None

    def place_of(self, submission: Submission, name: str) -> TextSpan:
        """Where the statement or the file sets a variable; the statement itself if that is not found."""
        span = self.tasks[0].span
        pattern = re.compile(rf"(?<![\w$]){name}=")
        found = pattern.search(submission.text, span.start, span.end)
        found = found or next((each for each in pattern.finditer(submission.text)), None)
        return span if found is None else TextSpan(found.start(), found.end())


def rank_groups(submission: Submission) -> Iterator[RankGroup]:
    """The groups of ranks that a shell or batch file starts.

    Raises:
        CannotLook: it is another file.
    """
    shell_of(submission)
    for step in submission.steps:
        starter = step.tasks[0].via[-1] if step.tasks[0].via else ""
        is_rank = step.is_certain and all(task.line.starter is None for task in step.tasks)
        if is_rank and starter in ("srun", "mpirun") and len({task.span for task in step.tasks}) == 1:
            yield RankGroup(step.tasks, starter)
