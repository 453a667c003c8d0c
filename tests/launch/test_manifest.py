"""Manifests: what is read of pods, where words stand, and that nothing makes the reader crash or hang."""

from __future__ import annotations

import time

import pytest
from cases import SITUATIONS
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.launch.manifests.manifest import lines_of_manifest

LEGAL = sorted((SITUATIONS / "manifests").iterdir())


def _pods(name: str) -> list[Pod]:
    lines, failures = lines_of_manifest(name, (SITUATIONS / "manifests" / name).read_text(), (2, 13))
    assert not failures
    return [line.pod for line in lines if line.pod is not None]


def test_a_pytorchjob_has_the_pods_of_both_roles_and_its_limits() -> None:
    master, worker = _pods("kubeflow_torchrun.yaml")
    assert (master.operator, master.pods, master.gpus, master.shm_bytes) == (Operator.PYTORCHJOB, 4, 8, 64 << 30)
    assert (master.role, worker.role, master.name) == ("Master", "Worker", "llama")
    assert master.host_network
    assert master.in_shell


def test_an_elastic_job_has_no_certain_number_of_pods() -> None:
    (pod,) = _pods("kubeflow_elastic.yaml")
    assert pod.pods is None


def test_an_indexed_job_counts_its_parallel_pods() -> None:
    assert [p.pods for p in _pods("indexed_job.yaml")] == [2]
    assert [p.pods for p in _pods("hyperparameters.yaml")] == [None]


@pytest.mark.parametrize(
    ("scalar", "place"),
    [
        ("'torchrun --nproc-per-node=2 train.py'", (9, 21)),
        ("torchrun --nproc-per-node=2 train.py", (9, 20)),
        ("|\n          set -e\n          torchrun --nproc-per-node=2 train.py", (11, 20)),
        (">-\n          set -e;\n          torchrun --nproc-per-node=2 train.py", (11, 20)),
    ],
)
def test_words_of_shell_text_stand_where_the_file_has_them(scalar: str, place: tuple[int, int]) -> None:
    head = "kind: Job\nmetadata: {name: j}\nspec:\n  template:\n    spec:\n      containers:\n"
    head += "      - command: [bash, -c]\n        args:\n"
    lines, _ = lines_of_manifest("j.yaml", f"{head}        - {scalar}\n", (2, 13))
    (line,) = lines
    option = next(w for w in line.argv if w.text.startswith("--nproc"))
    assert line.place(option.start) == (place[0], place[1])


def test_a_broken_document_keeps_those_before_it() -> None:
    text = LEGAL[[p.name for p in LEGAL].index("one_pod.yaml")].read_text()
    lines, failures = lines_of_manifest("p.yaml", f"{text}---\na: [1\nb: }}\n", (2, 13))
    assert len(lines) == 1
    assert "not YAML" in failures[0]


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 5000,
        "- " * 5000,
        "a: &a [*a, *a]\nkind: *a\nspec: *a\n",
        "kind: List\nitems: &i [{kind: List, items: *i}]\n",
        "a: &a [x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)),
        "kind: !!python/object/apply:os.system ['true']\n",
        "? " * 3000,
        "\t- x\n\x07",
    ],
)
def test_hostile_yaml_ends_soon_and_builds_nothing(text: str) -> None:
    started = time.monotonic()
    lines, _ = lines_of_manifest("x.yaml", text, (2, 13))
    assert lines == ()
    assert time.monotonic() - started < 10


@given(st.text(alphabet="ab :-[]{}&*!|>'\"\n\t#,?$()01", max_size=120), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_random_and_mutated_manifests_never_crash(noise: str, where: int) -> None:
    text = LEGAL[where % len(LEGAL)].read_text()
    at = where % len(text)
    for manifest in (noise, text[:at] + noise + text[at:], text[:at]):
        lines, _ = lines_of_manifest("x.yaml", manifest, (2, 13))
        for line in lines:
            assert all(line.place(w.start) for w in line.argv)
