"""Archives among the inputs of a command: unpacked into a folder that is removed at the end, and named as the user gave them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from ddpdoctor.app.given_names import with_given_names
from ddpdoctor.collectors.archives import is_archive, unpack
from ddpdoctor.examined import ExaminedInput
from ddpdoctor.findings import Report
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.lifetime import temporary_folder

__all__ = ["ArchivedInputs", "unpacked_inputs"]


@dataclass
class ArchivedInputs:
    """The paths to read. `names` are the folders of unpacked archives with what the user gave, `problems` what went wrong."""

    paths: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def as_given(self, report: Report) -> Report:
        """The report with the names of the archives in place of the folders, and archives that were not read completely."""
        if not self.names:
            return report
        partial = (
            ExaminedInput(name, "archive", is_understood=False, reason=problem)
            for name, problem in self.problems.items()
            if name in self.names.values()
        )
        named = with_given_names(report, self.names)
        return replace(named, inputs=(*named.inputs, *partial))


@contextlib.contextmanager
def unpacked_inputs(paths: Iterable[str]) -> Iterator[ArchivedInputs]:
    """The inputs, with a folder in place of each archive."""
    given = list(paths)
    archives = [path for path in given if is_archive(path)]
    if not archives:
        yield ArchivedInputs(given)
        return
    with temporary_folder() as root:
        inputs = ArchivedInputs()
        for index, path in enumerate(given):
            folder = os.path.join(root, str(index))
            if path not in archives:
                inputs.paths.append(path)
                continue
            os.mkdir(folder)
            result = unpack(path, folder)
            if result.problem:
                inputs.problems[path] = result.problem
            if result.files:
                inputs.names[folder] = path
                inputs.paths.append(folder)
            else:
                inputs.paths.append(path)
        yield inputs
