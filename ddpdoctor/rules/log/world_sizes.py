"""LAUNCH051, 054, 058, 063 and 070, SCRIPT005, NET015, NET018: what several lines together show about the launch."""

from __future__ import annotations

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.logs.traceback_of_line import traceback_of

__all__: list[str] = []

NOT_SET = (
    r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set",
    r"Missing required environment variables: \[?'?(?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR)",
)
CUT_NOT_SET = (r"_get_env_or_raise\([\"'](RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)[\"']\)|raise _env_error\(",)
"""The same in the frames of a traceback that is cut off before its exception."""
NO_KEY = (r"KeyError: '(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",)
NO_LOCAL_RANK = (r"KeyError: 'LOCAL_RANK'",)
NO_GROUP = (
    r"Default process group (?:has not been|is not) initialized",
    r"(?:model|tensor model|pipeline[_ ]model|data|expert|context)[_ ]parallel group is not initialized",
)


def worlds_finding(log: Log, text: str, lines: list[LogLine], first: LogLine) -> Finding:
    return Finding(
        text,
        tuple(Evidence(log.place(line.source, line.number), line.text[:200]) for line in lines[:4]),
        where=Where(file=log.sources[first.source].name, line=first.number),
    )


def is_of_batch_norm(log: Log, line: LogLine) -> bool:
    traceback = traceback_of(log, line)
    files = () if traceback is None else (frame.file for frame in traceback.frames)
    return any(file.endswith(("torch/nn/modules/_functions.py", "torch/nn/modules/batchnorm.py")) for file in files)
