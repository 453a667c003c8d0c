"""Which names are gathered, and which values never are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpdoctor.collectors.environ import relevant
from ddpdoctor.facts.variables import (
    FAMILIES,
    MEANINGS,
    NOT_GATHERED,
    PET_OPTIONS,
    is_read,
    is_relevant,
    is_secret,
    meaning,
)
from ddpdoctor.privacy.redaction import REMOVED, redact_variable


@pytest.mark.parametrize(
    "name",
    ["SLURM_JWT", "NCCL_TOKEN", "RAY_TRAIN_API_KEY", "PET_PASSWORD", "OMPI_MCA_AUTH", "NCCL_SECRETS", "DS_APIKEY"],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", [*MEANINGS, *PET_OPTIONS, "NCCL_IB_PKEY", "NCCL_KEYSTONE"])
def test_ordinary_names_are_no_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "RAY_JOB_CONFIG_JSON_ENV_VAR",
        "SM_TRAINING_ENV",
        "OMPI_ARGV",
        "PETS",
        "KUBERNETES_SERVICE_PORT",
        "CCL_LOG_LEVEL",
        "RCCL_MSCCL_ENABLE",
        "HCCL_SOCKET_IFNAME",
    ],
)
def test_names_that_say_nothing_about_the_job_are_not_gathered(name: str) -> None:
    assert not is_relevant(name)


@pytest.mark.parametrize(
    "name", ["NCLL_DEBUG", "nccl_debug", "NCCL_FUTURE", "TORCHELASTIC_RUN_ID", "PET_N_PROC_PER_NODE", "OMP_NUM_THREADS"]
)
def test_near_names_and_families_are_gathered(name: str) -> None:
    assert is_relevant(name)
    assert meaning(name)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://me:pw@proxy:3128", "http://***@proxy:3128"),
        ("token=abc,timeout=5", f"token={REMOVED},timeout=5"),
        ("--api-key: abc", f"--api-key: {REMOVED}"),
        ("join_timeout=5", "join_timeout=5"),
        ("node0:29500", "node0:29500"),
    ],
)
def test_secrets_inside_values_are_removed(value: str, shown: str) -> None:
    assert redact_variable("NCCL_NOTE", value) == shown


WORDS_OF_THE_CODE = frozenset(
    {
        "ACCELERATE_CONFIG",
        "ACCELERATE_NAMES",
        "ACCELERATE_PREFIXES",
        "MPI_LOCAL",
        "NVIDIA_SMI",
        "PET_OPTIONS",
        "SLURM_HET_SIZE",
        "SLURM_JOB",
    }
    | {"OMPI_MCA_orte_precondition_transports"}
    | {"LSB_SUB_HOST", "PMI_LOCAL_RANK", "SLURM_GPUS", "SLURM_TMPDIR"}
)
"""Constants, and beginnings of names; a session key, which is never collected; variables of imagined processes only."""


SPELLED = "launch589_injected_variable_misspelt.py"
"""It knows how the variables of job files are spelt, and reads no value."""


def test_every_variable_that_the_code_names_is_gathered_with_its_value() -> None:
    pattern = re.compile(r"(?<![A-Za-z0-9_])([A-Z][A-Z0-9]*_[A-Za-z0-9_]*[A-Za-z0-9])(?![A-Za-z0-9_])")
    package = Path(__file__).parents[2] / "ddpdoctor"
    named = {
        name for path in package.rglob("*.py") if path.name != SPELLED for name in pattern.findall(path.read_text())
    }
    of_families = {name for name in named if name.startswith(tuple(FAMILIES))} - WORDS_OF_THE_CODE
    assert len(of_families) > 300
    assert sorted(name for name in of_families if not is_read(name)) == []


def test_values_that_no_rule_reads_are_not_gathered() -> None:
    environ = {
        "SLURM_JOB_COMMENT": "reviewer two was right",
        "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image": "registry.example.com/team/image",
        "OMPI_MCA_ess_base_jobid": "4711",
        "DEEPSPEED_NOTE": "private",
        "SLURM_JOB_ID": "12",
        "NCCL_UNKNOWN_SETTING": "3",
    }
    gathered = relevant(environ)
    assert {name for name, value in gathered.items() if value == NOT_GATHERED} == {
        "SLURM_JOB_COMMENT",
        "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
        "OMPI_MCA_ess_base_jobid",
        "DEEPSPEED_NOTE",
    }
    assert gathered["SLURM_JOB_ID"] == "12"
    assert gathered["NCCL_UNKNOWN_SETTING"] == "3"
