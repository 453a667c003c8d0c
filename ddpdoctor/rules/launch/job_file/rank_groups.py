"""The ranks that srun or mpirun starts without a launcher of torch, as one statement of a job file starts them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddpdoctor.facts.job_file import FileLaunch, JobFile, TextSpan

__all__ = ["RankGroup", "rank_groups"]


@dataclass(frozen=True, slots=True)
class RankGroup:
    """All ranks of one statement that certainly runs. `starter` is srun or mpirun."""

    launches: tuple[FileLaunch, ...]
    starter: str

    def numbers(self, name: str) -> list[int] | None:
        """The values of a variable, rank by rank; None if one of them is not a known number."""
        texts = [each.line.environ.variables.get(name, "") for each in self.launches]
        return [int(text) for text in texts] if all(re.fullmatch(r"\d{1,6}", text) for text in texts) else None

    def place_of(self, job_file: JobFile, name: str) -> TextSpan:
        """Where the statement or the file sets a variable; the statement itself if that is not found."""
        span = self.launches[0].span
        pattern = re.compile(rf"(?<![\w$]){name}=")
        found = pattern.search(job_file.text, span.start, span.end)
        found = found or next((each for each in pattern.finditer(job_file.text)), None)
        return span if found is None else TextSpan(found.start(), found.end())


def rank_groups(job_file: JobFile) -> Iterator[RankGroup]:
    """The groups of ranks in the file."""
    groups: dict[int, list[FileLaunch]] = {}
    for each in job_file.launches:
        groups.setdefault(each.group, []).append(each)
    for members in groups.values():
        starter = members[0].via[-1] if members[0].via else ""
        is_rank = all(each.line.starter is None and each.is_certain for each in members)
        if is_rank and starter in ("srun", "mpirun") and len({each.span for each in members}) == 1:
            yield RankGroup(tuple(members), starter)
