"""What torch 2.14 and 2.15 changed of torchrun and its rendezvous, judged by the version of `--torch`."""

from __future__ import annotations

import pytest
from launches import lint

from ddpdoctor.facts.torchrun_options import torchrun_options

BACKOFF = (
    "torchrun --nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:29400 "
    "--rdzv_conf=cas_backoff_max_seconds={} train.py"
)
WITH_PREFIX = ["torchrun", "--nproc_per_node=2", "--log-line-prefix-template", "r: ", "train.py"]
COMPLETION = ["torchrun", "--print-completion", "bash"]


@pytest.mark.parametrize("argv", [WITH_PREFIX, COMPLETION], ids=lambda argv: argv[-2])
@pytest.mark.parametrize(("torch", "is_known"), [("2.13.0", False), ("2.14.0", True), ("2.15.0", True)])
def test_the_options_of_torch_2_14_are_known_from_it_on(argv: list[str], torch: str, is_known: bool) -> None:
    codes = {finding.code for finding in lint(argv=argv, torch=torch).findings}
    assert ("LAUNCH009" in codes) is not is_known


@pytest.mark.parametrize(
    ("value", "torch", "codes"),
    [
        ("0.5", "2.14.0", {"LAUNCH044"}),
        ("0.5", "2.15.0", set()),
        ("0", "2.15.0", set()),
        ("-1", "2.15.0", {"LAUNCH045"}),
        ("1s", "2.15.0", {"LAUNCH045"}),
        ("inf", "2.15.0", {"LAUNCH045"}),
    ],
)
def test_the_backoff_of_the_rendezvous_is_a_number_since_torch_2_15(value: str, torch: str, codes: set[str]) -> None:
    found = {finding.code for finding in lint(argv=BACKOFF.format(value).split(), torch=torch).findings}
    assert found & {"LAUNCH044", "LAUNCH045"} == codes


def test_torch_2_15_has_the_options_of_2_14() -> None:
    names = [option.dest for option in torchrun_options((2, 15))]
    assert names == [option.dest for option in torchrun_options((2, 14))]
    assert set(names) - {option.dest for option in torchrun_options((2, 13))} == {
        "log_line_prefix_template",
        "print_completion",
    }
