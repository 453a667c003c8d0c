"""LAUNCH585, LAUNCH586: objects that the API server refuses, and Volcano Jobs without the plugin that names their pods."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import at_mark

__all__: list[str] = []

_OF_JOBS = ("OnFailure", "Never")


@cause("LAUNCH585", "restart-policy-refused", Severity.ERROR)
def restart_policy_refused(submission: Submission) -> Iterator[Finding]:
    """The restartPolicy of the pods is not one that this kind of object allows.

    ## Why it matters
    The API server refuses the object, and no pod starts: `spec.template.spec.restartPolicy: Unsupported value: "Always"`.

    ## Fix
    Set `restartPolicy: Never` or `OnFailure` in a Job or CronJob.

    Leave it out in a StatefulSet, Deployment, ReplicaSet or DaemonSet, which allow only `Always`.

    ## Example
        error[LAUNCH585]: a Job does not allow restartPolicy: Always

        # before
        kind: Job
        spec: {template: {spec: {restartPolicy: Always}}}

        # after
        kind: Job
        spec: {template: {spec: {restartPolicy: Never}}}

    ## Source
    kubernetes.io, "Jobs", section "Pod Template"; kubernetes, pkg/apis/batch/validation/validation.go.
    """
    for each in submission.restart_policies:
        is_job = each.kind in ("Job", "CronJob")
        allowed = _OF_JOBS if is_job else ("Always",)
        is_missing = is_job and not each.policy  # the default is Always
        if (not each.policy and not is_missing) or each.policy in allowed or not submission.steps:
            continue
        text = f"a {each.kind} does not allow restartPolicy: {each.policy or 'Always, the default':.20}"
        expected = "Never or OnFailure" if is_job else "Always"
        yield at_mark(submission, each.at, text, seen=each.policy or "none", expected=expected, label=f"use {expected}")


@cause("LAUNCH586", "volcano-svc-plugin-missing", Severity.ERROR)
def volcano_svc_plugin_missing(submission: Submission) -> Iterator[Finding]:
    """A Volcano Job uses host variables of the plugin `svc`, which it does not switch on.

    ## Why it matters
    Only this plugin sets VC_*_HOSTS and VC_*_NUM and makes the headless service of the pods. Without it the master address
    is empty, and torchrun uses its own host or fails.

    ## Fix
    Add `svc: []` to the plugins of the Job.

    ## Example
        error[LAUNCH586]: VC_NODE_HOSTS is not set: the Job has no svc plugin

        # before
        plugins:
          env: []

        # after
        plugins:
          env: []
          svc: []

    ## Source
    volcano-sh/volcano, pkg/controllers/job/plugins/svc/svc.go.
    """
    for each in submission.volcano_names:
        text = f"{each.variable:.40} is not set: the Job has no svc plugin"
        yield at_mark(submission, each.at, text, seen="no svc plugin", expected="svc: []", label="add svc: []")
