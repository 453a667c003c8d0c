"""Which names are gathered, and which values never are."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.variables import MEANINGS, PET_OPTIONS, is_relevant, is_secret, meaning
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
