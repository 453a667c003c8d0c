"""Proof that a message comes from a process of the same job: an HMAC with a secret that only the job's processes can read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ddpdoctor.system.regular_file import special_kind, why_unreadable

__all__ = ["NO_PROOF", "NO_SECRET", "SECRET_VARIABLE", "Proof", "SecretError", "proof_of", "secret_of"]

SECRET_VARIABLE = "DDPDOCTOR_SECRET_FILE"
NO_SECRET = "none"
"""Instead of a file: nothing is to be proved."""
HOME_FILE = Path(".config") / "ddpdoctor" / "secret"
"""In a home folder that all nodes share."""
SHORTEST, LONGEST = 16, 4096
"""Bytes of a secret."""
DIGITS = 32
"""Hexadecimal digits of a proof: 128 bits."""


class SecretError(Exception):
    """The file of the secret cannot be used; the message says why."""


class Proof:
    """Signs messages and checks them. Without a key every message is accepted: `is_given` says so.

    Args:
        key: the secret; None if the job has none.
        purpose: what the messages are for: a proof for one purpose is none for another.
    """

    def __init__(self, key: bytes | None, purpose: str = "") -> None:
        self._key = None if key is None else _hmac(key, purpose.encode())

    @property
    def is_given(self) -> bool:
        """Whether there is a secret."""
        return self._key is not None

    def of(self, message: bytes) -> str:
        """The proof of a message, "" without a secret."""
        if self._key is None:
            return ""
        return _hmac(self._key, message).hex()[:DIGITS]

    def holds(self, message: bytes, proof: object) -> bool:
        """Whether this proof is the one of the message."""
        if self._key is None:
            return True
        if not isinstance(proof, str):
            return False
        import hmac

        return hmac.compare_digest(self.of(message).encode(), proof.encode("utf-8", "replace"))

    def sealed(self, text: bytes) -> bytes:
        """A text with its proof before it."""
        return text if self._key is None else self.of(text).encode() + b" " + text

    def opened(self, sealed: bytes) -> bytes | None:
        """The text of `sealed`; None if its proof is wrong or missing."""
        if self._key is None:
            return sealed
        proof, _, text = sealed.partition(b" ")
        return text if self.holds(text, proof.decode("utf-8", "replace")) else None


NO_PROOF = Proof(None)


def _hmac(key: bytes, message: bytes) -> bytes:
    import hmac  # loads OpenSSL, 3.5 MB, which a job without a secret does not need

    return hmac.digest(key, message, "sha256")


def proof_of(environ: Mapping[str, str], purpose: str) -> Proof:
    """The proof of this job, with the secret of `secret_of`.

    Raises:
        SecretError: a file that was named cannot be read, is too short, or can be read by others.
    """
    return Proof(secret_of(environ), purpose)


def secret_of(environ: Mapping[str, str], path: str | None = None) -> bytes | None:
    """The secret of this job: in `path`, else in the file that DDPDOCTOR_SECRET_FILE names, else in
    `~/.config/ddpdoctor/secret`. None if that does not exist, or if `none` is named.

    Raises:
        SecretError: a file that was named cannot be read, is too short, or can be read by others.
    """
    named = path or environ.get(SECRET_VARIABLE)
    if named == NO_SECRET:
        return None
    if named:
        return _secret(Path(named))
    home = environ.get("HOME")
    try:
        return _secret(Path(home) / HOME_FILE) if home else None
    except SecretError:  # nobody named it: without it the report says that the nodes are not authenticated
        return None


def _secret(path: Path) -> bytes:
    """What the file holds, without spaces around it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SecretError(f"{path}: {why_unreadable(error, str(path))}") from None
    try:
        status = os.fstat(file)
        special = special_kind(status.st_mode)
        if special is not None:
            raise SecretError(f"{path}: {special}, not a regular file")
        if status.st_size == 0:  # such as /proc/kmsg, of which each read takes something away
            raise SecretError(f"{path}: empty, or a file of the kernel; a secret has at least {SHORTEST} bytes")
        if status.st_uid not in (os.getuid(), 0):
            raise SecretError(f"{path}: belongs to another user")
        if status.st_mode & 0o077:
            raise SecretError(f"{path}: other users may read it; run `chmod 600 {path}`")
        secret = os.read(file, LONGEST).strip()
    except OSError as error:
        raise SecretError(f"{path}: {why_unreadable(error, str(path))}") from None
    finally:
        os.close(file)
    if len(secret) < SHORTEST:
        raise SecretError(f"{path}: {len(secret)} bytes; a secret has at least {SHORTEST}")
    return secret
