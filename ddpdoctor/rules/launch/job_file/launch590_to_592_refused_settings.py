"""LAUNCH590 to LAUNCH592: settings of a job file that the program which reads them refuses, or leaves without effect."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.refused import Refused, RefusedKind
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

__all__: list[str] = []

MOST = 6
"""Findings of one kind for one file."""


@cause("LAUNCH590", "setting-unknown", Severity.ERROR)
def setting_unknown(submission: Submission) -> Iterator[Finding]:
    """A setting of a job file is unknown to its reader, is misplaced, or stands twice.

    ## Why it matters
    kubectl refuses the object with `strict decoding error: unknown field`, Compose with `additional properties are not allowed`,
    accelerate with `had unknown keys`. Readers that do not check ignore the setting, and the job starts without it.

    ## Fix
    Correct the setting's name, or move it to its place.

    ## Example
        error[LAUNCH590]: a Container has no field volumeMount; volumeMounts is one

        # before
        volumeMount: [{name: shm, mountPath: /dev/shm}]

        # after
        volumeMounts: [{name: shm, mountPath: /dev/shm}]

    ## Source
    The OpenAPI documents of Kubernetes, Kubeflow and JobSet; compose-spec.json; accelerate, commands/config/config_args.py.
    """
    for each in _chosen(submission, RefusedKind.UNKNOWN):
        owner = _article(each.owner)
        meant = f"; {each.expected:.30} is one" if each.expected else ""
        label = f"write {each.expected:.40}" if each.expected else "unknown here"
        text = each.says or f"{owner} has no setting {each.name:.30}{meant}"
        yield _at(submission, each, text, each.expected or "a known setting", label)
    for each in _chosen(submission, RefusedKind.REPEATED):
        text = f"{each.name:.30} stands twice in {_article(each.owner)}; only one counts"
        yield _at(submission, each, text, "one", "second one")


@cause("LAUNCH591", "setting-refused", Severity.ERROR)
def setting_refused(submission: Submission) -> Iterator[Finding]:
    """A setting of a job file has a value that its reader refuses.

    ## Why it matters
    The object, the container or the job is refused before anything starts: `cannot unmarshal number into Go struct field
    EnvVar.value of type string`, `must be equal to nvidia.com/gpu limit`, `invalid batch_size`.

    ## Fix
    Give the setting the value that the finding names.

    ## Example
        error[LAUNCH591]: value takes text, not 1

        # before
        env: [{name: OMP_NUM_THREADS, value: 4}]

        # after
        env: [{name: OMP_NUM_THREADS, value: "4"}]

    ## Source
    kubernetes, pkg/apis/core/validation; the Compose specification; deepspeed/runtime/config.py; accelerate, utils/launch.py.
    """
    for each in _chosen(submission, RefusedKind.TYPE):
        quote = " in quotes" if each.expected == "text" else ""
        yield _at(
            submission,
            each,
            f"{each.name:.40} takes {each.expected}{quote}, not {each.seen:.30}",
            each.expected,
            f"write {each.expected}",
        )
    for each in _chosen(submission, RefusedKind.VALUE):
        yield _at(submission, each, _value_text(each), each.expected, f"expected {each.expected:.40}")


@cause("LAUNCH592", "setting-names-nothing", Severity.ERROR)
def setting_names_nothing(submission: Submission) -> Iterator[Finding]:
    """A setting names a volume, ConfigMap, key or service that the file does not have.

    ## Why it matters
    The API server refuses a pod whose mount has no volume (`volumeMounts[0].name: Not found`). Compose stops with
    `refers to undefined volume`, and a pod that names a missing ConfigMap waits in `CreateContainerConfigError`.

    ## Fix
    Write the name of the object that is meant.

    ## Example
        error[LAUNCH592]: volumeMounts: no dshm; the file has shm

        # before
        volumeMounts: [{name: dshm, mountPath: /dev/shm}]
        volumes: [{name: shm, emptyDir: {medium: Memory}}]

        # after
        volumeMounts: [{name: shm, mountPath: /dev/shm}]
        volumes: [{name: shm, emptyDir: {medium: Memory}}]

    ## Source
    kubernetes, pkg/apis/core/validation/validation.go: ValidateVolumeMounts; compose-spec, 07-volumes.md.
    """
    for each in _chosen(submission, RefusedKind.DANGLING):
        is_name = not each.expected.startswith("a ")
        has = f"the file has {each.expected:.30}" if is_name else f"the file has no such {each.expected[2:]}"
        label = f"write {each.expected:.40}" if is_name else "not in the file"
        yield _at(submission, each, f"{each.owner}: no {each.name:.30}; {has}", each.expected, label)


def _chosen(submission: Submission, kind: RefusedKind) -> list[Refused]:
    found = {(each.at, each.name, each.file): each for each in submission.refused if each.kind is kind}
    return list(found.values())[:MOST]


def _value_text(each: Refused) -> str:
    if each.says == "order":
        return f"{each.seen} is not expanded: {each.name:.30} stands before its variable"
    if each.says == "interpolated":
        return f"Compose replaces {each.seen} before the container starts; write {each.expected}"
    if each.says:
        return each.says
    if each.seen == "requests alone":
        return f"{each.name:.40} has a request without a limit"
    if not each.seen:
        return f"{each.owner} has no {each.name:.30}, expected {each.expected:.40}"
    if each.seen.startswith(f"{each.name}="):
        return f"{each.owner} does not accept {each.seen:.50}, expected {each.expected:.40}"
    return f"{each.owner}: {each.name:.30} is {each.seen:.30}, expected {each.expected:.40}"


def _article(owner: str) -> str:
    if " " in owner or owner[:1].islower():
        return owner
    return f"an {owner}" if owner[:1] in "AEIO" else f"a {owner}"


def _at(submission: Submission, each: Refused, text: str, expected: str, label: str) -> Finding:
    return Finding(
        text,
        (Evidence("submission", each.seen or each.name, expected),),
        where=Where(file=each.file or submission.file, line=each.at.line, column=each.at.column),
        label=label,
    )
