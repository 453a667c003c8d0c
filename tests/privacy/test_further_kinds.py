"""Kinds of secrets that were written in other words than those that the filter was built with."""

from __future__ import annotations

import random
import time

import pytest
from planted import Kind, Secret
from planted_again import MORE_KINDS

from ddpdoctor.privacy.long_texts import without_secrets_of_lines
from ddpdoctor.privacy.redaction import redact, redact_variable

NOT_TOLD_APART = {"Together key"}
"""64 hexadecimal digits without a name or a message: a log has more checksums than keys of this form."""


def test_there_are_enough_further_kinds() -> None:
    assert len({kind.title for kind in MORE_KINDS}) >= 150


@pytest.mark.parametrize("kind", MORE_KINDS, ids=lambda kind: kind.title)
def test_a_further_kind_is_removed_from_variables_command_lines_and_texts(kind: Kind) -> None:
    source = random.Random(kind.title)
    for _ in range(3):
        secret = Secret(kind, kind.make(source))
        texts = [str(redact({"message": f"it printed {secret.line} here"}))]
        if kind.title not in NOT_TOLD_APART:
            texts += [redact({"text": secret.line})["text"], without_secrets_of_lines(secret.line + "\n", lambda: True)]
        if kind.name.startswith("-"):
            texts.append(str(redact(["python", "train.py", kind.name, secret.value])))
        elif kind.name:
            texts.append(redact_variable(kind.name, secret.value))
            texts.append(str(redact({"environ": {kind.name: secret.value}})))
        assert [text for text in texts if secret.value in text] == []


def test_many_digits_after_a_name_take_no_time() -> None:
    """Each further digit doubled it: 36 of them never ended."""
    began = time.process_time()
    redact({"text": f"front.token.{'1234567890' * 3}.{'XYZabcd' * 20}"})
    assert time.process_time() - began < 5
