"""LOG008, LOG009, LOG010, LOG016, LOG017, LOG503: what launchers print around a failure, and after a good end."""

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
    With --max-restarts the workers are started again, and the log ends with the failure of the last attempt, which often
    is another one: a port that is still taken, a store that still holds the keys of the first attempt.

    ## Fix
    Read attempt 0 (the folder attempt_0 of --log-dir), or run once with --max-restarts=0.
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
    """The launcher's summary does not hold the worker's traceback.

    ## Why it matters
    "traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html" is all that gets pasted; the
    real error stands higher up, or in the output of another node.

    ## Fix
    Decorate main with @torch.distributed.elastic.multiprocessing.errors.record, and start with torchrun --log-dir=logs
    --tee=3, which keeps each rank's output in a file of its own.
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
    "Sending process 4711 closing signal SIGTERM" and exit code -15 belong to workers that were well.

    ## Fix
    Look at the worker with another exit code than -15.
    """


@cause(
    "LOG503",
    "tasks-not-started",
    Severity.ERROR,
    signatures=(
        r"(?:torchrun|accelerate|deepspeed|horovodrun): command not found",
        r"(?:torchrun|accelerate|deepspeed|horovodrun|mpirun): not found",
        r"execve\(\): [^\n]*(Permission denied|No such file or directory|Exec format error)",
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
    """The tasks, or their containers, could not be started.

    ## Why it matters
    "execve(): train.py: Permission denied", "Task launch for 36.0 failed on node n17: Job credential expired" or "Unable to
    create step": no line of the script ever ran, and srun's "Exited with exit code 13" looks like a failure of the script.

    ## Fix
    Start the interpreter (srun python train.py) or make the file executable on every node; for a node that refuses, compare
    its clock with the others', look at its slurmd log and leave it out (srun --exclude); for a step, ask for no more than the
    allocation holds. For a container without GPUs install the NVIDIA Container Toolkit on that node and restart Docker.
    """


@cause("LOG016", "launcher-exit-code-one", Severity.NOTE, kind="noise")
def launcher_exit_code_one() -> None:
    """torchrun ends with exit code 1 whatever the worker's exit code was.

    ## Why it matters
    The scheduler's record says 1 for every failure; the worker's own code (-9, -11, 3) stands in torchrun's summary only.

    ## Fix
    Read the line "exitcode : … (pid: …)" of the summary.
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
    """A job that ended well prints errors of the store or the rendezvous at its exit.

    ## Why it matters
    The agent that hosts the store left first: "Error waiting on exit barrier. Elapsed: 0.02 seconds" or "The node … has
    failed to shutdown the rendezvous … due to an error of type RendezvousConnectionError" after a run that ended with 0.

    ## Fix
    Nothing, when the exit code is 0.
    """
