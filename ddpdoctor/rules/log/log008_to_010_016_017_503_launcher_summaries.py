"""LOG008, LOG009, LOG010, LOG016, LOG017, LOG503: what launchers print after a failure and after a successful run."""

from __future__ import annotations

from ddpdoctor.findings import Severity, Speaker
from ddpdoctor.rules import cause


@cause(
    "LOG008",
    "first-attempt-hidden",
    Severity.WARNING,
    speaker=Speaker.LAUNCHER,
    kind="consequence",
    signatures=(
        r"\battempt_[1-9]\d?\b",
        r"\b\d{1,3}/\d{1,3} attempts left",
    ),
    all_attempts=True,
)
def first_attempt_hidden() -> None:
    """The log shows the last restart of the workers, not the first failure.

    ## Why it matters
    With --max-restarts the workers start again, and the log ends with the failure of the last attempt. That is often a different
    one: a port that is still in use, or a store with the keys of the first attempt.

    ## Fix
    Read attempt 0 (the folder attempt_0 of --log-dir), or run once with --max-restarts=0.

    ## Example

        [INFO] Worker group FAILED. 2/3 attempts left; will restart worker group

        # before
        torchrun --max-restarts=3 … train.py
        # after
        torchrun --max-restarts=0 … train.py
    """


@cause(
    "LOG009",
    "worker-traceback-missing",
    Severity.NOTE,
    speaker=Speaker.LAUNCHER,
    kind="consequence",
    signatures=(
        r"To enable traceback see: https://pytorch\.org",
        r"with no error file",
    ),
)
def worker_traceback_missing() -> None:
    """The launcher's summary does not contain the worker's traceback.

    ## Why it matters
    `traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html` is often all that gets copied; the
    error is earlier in the log, or in the output of another node.

    ## Fix
    Start with `torchrun --log-dir=logs --tee=3`, which writes the output of each rank to its own file, and decorate main with
    `torch.distributed.elastic.multiprocessing.errors.record`.

    ## Example

        traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html

        # before
        def main():
        # after
        @record
        def main():
    """


@cause(
    "LOG010",
    "launcher-closing-signal",
    Severity.NOTE,
    yields_to=("LOG505",),
    speaker=Speaker.LAUNCHER,
    kind="consequence",
    signatures=(
        r"closing signal SIGTERM",
        r"Sending process \d+ closing signal",
        r"exitcode\s*: -15\b",
        r"Killing subprocess \d+",
    ),
)
def launcher_closing_signal() -> None:
    """The launcher ended healthy workers after another one had failed.

    ## Why it matters
    `Sending process 4711 closing signal SIGTERM` and exit code -15 belong to workers that did not fail.

    ## Fix
    Read the output of the worker whose exit code is not -15.

    ## Example

        Sending process 4711 closing signal SIGTERM
        exitcode  : 1 (pid: 4710)

        # before: the output of pid 4711
        cat logs/*/attempt_0/1/stderr.log
        # after: the output of pid 4710, which failed
        cat logs/*/attempt_0/0/stderr.log
    """


@cause(
    "LOG503",
    "tasks-not-started",
    Severity.ERROR,
    signatures=(
        r"(?:torchrun|accelerate|deepspeed|horovodrun): command not found",
        r"(?:torchrun|accelerate|deepspeed|horovodrun|mpirun): not found",
        r"execve\(\): [^\n]{0,300}(Permission denied|No such file or directory|Exec format error)",
        r"Task launch for \S+ failed on node",
        r"Application launch failed: ",
        r"srun: error: Unable to (create step|allocate resources|confirm allocation)",
        r"error: Unable to satisfy cpu bind request",
        r"srun: fatal: ",
        r"There are not enough slots available in the system",
        r"could not select device driver",
        r"nvidia-container-cli: ",
        r"OCI runtime create failed",
        r"spank: required plugin \S+ [\w()]+ failed|pyxis: (couldn't start container|child \d+ failed|failed to import)",
    ),
)
def tasks_not_started() -> None:
    """The tasks or their containers could not be started.

    ## Why it matters
    After `execve(): train.py: Permission denied`, `Task launch for 36.0 failed on node n17: Job credential expired`, or `Unable
    to create step`, no line of the script ran. srun's `Exited with exit code 13` looks like a failure of the script.

    ## Fix
    Start the interpreter (`srun python train.py`), or make the file executable on every node. If a node refuses, compare its
    clock with the others', read its slurmd log, and exclude it (`srun --exclude`); a step may not request more than its
    allocation. For a container without GPUs, install the NVIDIA Container Toolkit on that node and restart Docker.

    ## Example

        slurmstepd: error: execve(): train.py: Permission denied

        # before
        srun train.py
        # after
        srun python train.py
    """


@cause("LOG016", "launcher-exit-code-one", Severity.NOTE, kind="noise")
def launcher_exit_code_one() -> None:
    """torchrun ends with exit code 1, whatever the worker's exit code was.

    ## Why it matters
    The scheduler records 1 for every failure; only torchrun's summary shows the worker's own code (-9, -11, 3).

    ## Fix
    Read the line `exitcode : … (pid: …)` of the summary.

    ## Example

        exitcode  : -9 (pid: 4312)

        # before: the scheduler's exit code, always 1:0
        sacct -j JOB --format=ExitCode
        # after: the worker's exit code
        grep exitcode slurm-JOB.out
    """


@cause(
    "LOG017",
    "exit-noise-of-good-run",
    Severity.NOTE,
    kind="noise",
    signatures=(
        r"Error waiting on exit barrier",
        r"has failed to shutdown the rendezvous",
    ),
)
def exit_noise_of_good_run() -> None:
    """A successful job prints errors of the store or the rendezvous when it exits.

    ## Why it matters
    The agent that hosts the store exited first: `Error waiting on exit barrier. Elapsed: 0.02 seconds`, or `The node … has
    failed to shutdown the rendezvous … due to an error of type RendezvousConnectionError`, after a run with exit code 0.

    ## Fix
    Do nothing if the exit code is 0.

    ## Example

        Error waiting on exit barrier. Elapsed: 0.02 seconds

        # before and after
        torchrun … train.py; echo $?    # 0
    """
