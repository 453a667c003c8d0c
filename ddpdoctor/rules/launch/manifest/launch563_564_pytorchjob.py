"""LAUNCH563, LAUNCH564: PyTorchJobs that their operator refuses, or whose elastic minimum is never reached."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import at_mark, count_of

__all__: list[str] = []


@cause("LAUNCH563", "pytorchjob-container-name", Severity.ERROR)
def pytorchjob_container_name(submission: Submission) -> Iterator[Finding]:
    """No container of a PyTorchJob is called `pytorch`, so the operator starts no pod.

    ## Why it matters
    The training operator sets its variables in the container with this name, and refuses a job without one:
    `There is no container named pytorch in Master`.

    ## Fix
    Name the training container `pytorch` in the Master and in the Worker.

    ## Example
        error[LAUNCH563]: the Master has no container called pytorch

        # before
        containers:
        - name: trainer

        # after
        containers:
        - name: pytorch

    ## Source
    kubeflow/training-operator, pkg/webhooks/pytorch/pytorchjob_webhook.go (`validatePyTorchReplicaSpecs`).
    """
    for job in submission.pytorch_jobs:
        for role, name, at in job.nameless:
            text = f"the {role} has no container called pytorch"
            yield at_mark(submission, at, text, seen=name, expected="pytorch", label="call it pytorch")


@cause("LAUNCH564", "elastic-minimum-above-replicas", Severity.ERROR)
def elastic_minimum_above_replicas(submission: Submission) -> Iterator[Finding]:
    """The elasticPolicy of a PyTorchJob waits for more workers than the job starts.

    ## Why it matters
    torchrun gets `--nnodes=minReplicas:maxReplicas` and waits for the minimum. The pods run without output until the
    rendezvous times out: `RendezvousTimeoutError`.

    ## Fix
    Set `minReplicas` to at most the `replicas` of the Worker.

    ## Example
        error[LAUNCH564]: minReplicas is 4, but 2 workers start

        # before
        elasticPolicy: {minReplicas: 4, maxReplicas: 4}
        pytorchReplicaSpecs:
          Worker: {replicas: 2}

        # after
        elasticPolicy: {minReplicas: 2, maxReplicas: 4}

    ## Source
    kubeflow/training-operator, pkg/controller.v1/pytorch/elastic.go.
    """
    for job in submission.pytorch_jobs:
        if job.least is not None and job.workers is not None and job.least_at is not None and job.least > job.workers:
            verb = "starts" if job.workers == 1 else "start"
            text = f"minReplicas is {job.least}, but {count_of(job.workers, 'worker')} {verb}"
            label = f"at most {job.workers}"
            yield at_mark(submission, job.least_at, text, seen=str(job.least), expected=label, label=label)
