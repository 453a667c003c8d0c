"""Runs the command line as a user would: a process of its own, with a deadline; or inside the test, if that is enough."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 150


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A small environment in which this checkout is found."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8", **(extra or {})}


def doctor(
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    stdin: bytes = b"",
    shell: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `ddpdoctor words`; `shell` is a bash line in which "$@" stands for the command."""
    command = [sys.executable, "-m", "ddpdoctor", *words]
    if shell is not None:
        command = ["bash", "-o", "pipefail", "-c", shell, "bash", *command]
    done = subprocess.run(command, capture_output=True, input=stdin, env=environment(env), cwd=cwd, timeout=SECONDS)
    out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(words, done.returncode, out, err)


def inside(*words: str, cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    """The same in this process and its environment, for commands that do not examine the machine."""
    from ddpdoctor.app import clock
    from ddpdoctor.cli.app import run

    clock._starts.clear()  # the command begins now, not with the test run
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before = os.getcwd()
    os.chdir(cwd)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(list(words))
    finally:
        os.chdir(before)
    told = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, code, *told)
