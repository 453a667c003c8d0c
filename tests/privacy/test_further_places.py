"""Places of secrets and harmless values that tools' own documents showed: 8 of 189, 6 of 208 were missed."""

from __future__ import annotations

import pytest

from ddpdoctor.privacy.long_texts import without_secrets_of_lines
from ddpdoctor.privacy.redaction import redact

HEX = "dc77e022d641fffa484b9902" + "2536b8b151f8c513"
PLACES = (
    ("python train.py -m sacred:{}@mongo.lab:27017:experiments.runs", "TBnRvxPLRmqf8buGq8"),
    ("wandb: Appending key for api.wandb.ai to your netrc file: {}", HEX),
    ("b2 authorize-account 0012abc {}", "K003qCYtCAbBi/27A/EKDkiy7iG9y7B"),
    ("weka user login admin {}", "pggzrlS7DI4WXj"),
    ("conda config --add channels https://conda.anaconda.org/t/{}/lab", "la-29f052cf-1125-450b-a566-2cc90a30c1d4"),
    ("https://api.telegram.org/bot{}/sendMessage", "6870317737:AAVyoyIz8MafDg-16S-y-Cv23umJRapgwnQ"),
    ("echo {} | kinit ml@LAB", "aJMSytH3jwreq9"),
    ("echo '{}' | docker login -u team --password-stdin", "aJMSytH3jwreq9"),
    ("smtp.login('ml@lab.example', '{}')", "0MEYeyki3RFPfDA6"),
    ("requests.get(url, auth=HTTPBasicAuth('ml', '{}'))", "0MEYeyki3RFPfDA6"),
)
HARMLESS = (
    f"HEAD is now at {HEX} fix dataloader",
    "md5sum checkpoint.pt d41d8cd98f00b204e9800998ecf8427e",
    "MLFLOW_RUN_ID=6a0b1f5e7c8d49f2a3b4c5d6e7f80912",
    "GOOGLE_APPLICATION_CREDENTIALS=/secrets/gcp/key.json",
    "secretary=jane.doe",
    "image: nvcr.io/nvidia/pytorch:24.07-py3@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "git@github.com:lab/llm-train.git",
    "echo training finished | tee log.txt",
    "user login admin failed",
    "torch==2.4.0 wheel:cp311x86@mirror",
)


@pytest.mark.parametrize(("text", "secret"), PLACES)
def test_a_secret_in_this_place_is_removed(text: str, secret: str) -> None:
    line = text.format(secret)
    for told in (redact({"text": line})["text"], redact({"evidence": line})["evidence"], redact([line])[0]):
        assert secret not in told
    assert secret not in without_secrets_of_lines(f"{line}\n", lambda: True)


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redact({"text": line})["text"] == line
    assert redact({"evidence": line})["evidence"] == line
