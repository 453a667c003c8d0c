"""How two nodes prove to each other that they belong to one job, without sending what they share.

    client: prove      nonce C
    host:   challenge  nonce H, proof of (host, token, C, H)
    client: answer     proof of (member, token, C, H)

After that every line in both directions carries its own proof (`channel.py`). The shared key is the content of a file that
only the job's user can read, or, in a Slurm job with munge, a random one that munge encrypts for processes of this user.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from dataclasses import field
from typing import Any

from ddpdoctor.facts.nodes import Proves
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.channel import NodeConnection, SessionKeys
from ddpdoctor.multinode.messages import PROTOCOL, WireError, encode_line
from ddpdoctor.network.aio import call_in_thread
from ddpdoctor.network.munge import SECONDS as MUNGE_SECONDS
from ddpdoctor.network.munge import Munge

__all__ = ["Authentication", "NotProvenError"]

NONCE_DIGITS = 32
SKEW_SECONDS = 300.0
"""How far the clocks of two nodes may be apart for a signed datagram, which has no challenge, to count."""
MOST_KEYS = 64
"""Keys of other nodes that are remembered, so that munge decrypts each of them once."""


class NotProvenError(WireError):
    """The other node has no proof, or a different one. `proves` is what it has."""

    def __init__(self, proves: str, host: str = "") -> None:
        super().__init__("the other node does not prove that it belongs to this job")
        self.proves = proves
        self.host = host


@dataclass
class Authentication:
    """What this node can prove. Without a secret and munge, `proves` is "" and nodes are accepted without a proof."""

    secret: bytes | None = None
    munge: Munge | None = None
    node: dict[str, Any] = field(default_factory=dict)
    """The name of this node, its script and rendezvous id, for the other side's report."""
    _own: tuple[bytes, str] | None = None
    _others: dict[str, bytes] = field(default_factory=dict)

    @property
    def proves(self) -> str:
        """`file`, `munge`, or "" without a proof."""
        return Proves.FILE if self.secret is not None else Proves.MUNGE if self.munge is not None else Proves.NOTHING

    async def prove_to_host(self, channel: NodeConnection, token: str) -> None:
        """As a client: prove the membership, and check the host's proof. Nothing is sent without a secret.

        Raises:
            NotProvenError: the host has no proof or another one.
            WireError, OSError: the host violated the protocol, or the connection was lost.
        """
        if not self.proves:
            return
        nonce = secrets.token_hex(NONCE_DIGITS // 2)
        opening = {"ddpdoctor": PROTOCOL, "kind": "prove", "token": token, "proves": self.proves, "nonce": nonce}
        await channel.send({**opening, "node": self.node})
        challenge = await channel.receive()
        if challenge.get("kind") != "challenge":
            raise OtherAnswer(challenge)
        key = await self._key_of_host(challenge.get("sealed"))
        about = _about(token, nonce, challenge.get("nonce"))
        if key is None or not _holds(key, b"host", about, challenge.get("proof")):
            await channel.send(self._refusal())
            if challenge.get("token") not in (None, token):
                raise OtherAnswer({**challenge, "kind": "other-job"})
            raise NotProvenError(Proves.OTHER, _name(challenge))
        await channel.send({"kind": "answer", "proof": _proof(key, b"member", about)})
        channel.seal_with(SessionKeys(_key(key, b"from member", about), _key(key, b"from host", about)))

    async def check_client(self, channel: NodeConnection, message: dict[str, Any], more: dict[str, Any]) -> None:
        """As the host: the client's first message asks for a challenge, which is sent with `more` fields.

        Raises:
            NotProvenError: the client has another proof.
            WireError, OSError: the client violated the protocol, or the connection was lost.
        """
        proves = message.get("proves")
        own = await self._own_key() if proves == self.proves else None
        if own is None:
            await self.refuse(channel)
            raise NotProvenError(proves if proves in Proves.ALL and proves != self.proves else Proves.OTHER)
        key, sealed = own
        nonce = secrets.token_hex(NONCE_DIGITS // 2)
        about = _about(message.get("token"), message.get("nonce"), nonce)
        challenge = {"kind": "challenge", "nonce": nonce, "sealed": sealed, "proof": _proof(key, b"host", about)}
        await channel.send({**more, "ddpdoctor": PROTOCOL, "host": self.node.get("host"), **challenge})
        answer = await channel.receive()
        if answer.get("kind") != "answer" or not _holds(key, b"member", about, answer.get("proof")):
            raise NotProvenError(Proves.OTHER)
        channel.seal_with(SessionKeys(_key(key, b"from host", about), _key(key, b"from member", about)))

    async def refuse(self, channel: NodeConnection) -> None:
        """Tell a client what this node needs, and nothing else."""
        await channel.send(self._refusal())

    def _refusal(self) -> dict[str, Any]:
        return {"ddpdoctor": PROTOCOL, "kind": "no-proof", "proves": self.proves, "host": self.node.get("host")}

    async def signed(self, message: dict[str, Any]) -> dict[str, Any]:
        """A datagram with a proof of it, which its time limits to a few minutes."""
        if not self.proves:
            return message
        message = {**message, "at": round(time.time(), 1)}
        digest = _digest(message)
        if self.secret is not None:
            return {**message, "proof": _proof(_of_file(self.secret), b"datagram", digest)}
        munge = self.munge
        assert munge is not None
        sealed = await call_in_thread(lambda: munge.sealed(digest), MUNGE_SECONDS)
        return {**message, "proof": sealed or ""}

    async def has_signed(self, message: dict[str, Any]) -> bool:
        """Whether a node of this job sent this datagram a short time ago; without a secret every one counts."""
        if not self.proves:
            return True
        bare, proof, at = (
            {key: message[key] for key in message if key != "proof"},
            message.get("proof"),
            message.get("at"),
        )
        if not isinstance(at, (int, float)) or not abs(at - time.time()) < SKEW_SECONDS:
            return False
        if self.secret is not None:
            return _holds(_of_file(self.secret), b"datagram", _digest(bare), proof)
        munge = self.munge
        assert munge is not None
        opened = await call_in_thread(lambda: munge.opened(proof), MUNGE_SECONDS)
        return opened is not None and hmac.compare_digest(opened, _digest(bare))

    async def _own_key(self) -> tuple[bytes, str] | None:
        """As the host: the key, and in which form it is sent to clients: not at all, or encrypted by munge."""
        if self.secret is not None:
            return _of_file(self.secret), ""
        munge = self.munge
        if munge is None:
            return None
        if self._own is None:
            key = secrets.token_bytes(32)
            sealed = await call_in_thread(lambda: munge.sealed(key), MUNGE_SECONDS)
            if sealed is None:
                return None
            self._own = self._own or (key, sealed)
        return self._own

    async def _key_of_host(self, sealed: object) -> bytes | None:
        if self.secret is not None:
            return _of_file(self.secret)
        munge = self.munge
        if munge is None or not isinstance(sealed, str):
            return None
        if sealed not in self._others:
            key = await call_in_thread(lambda: munge.opened(sealed), MUNGE_SECONDS)
            if not key or len(self._others) >= MOST_KEYS:
                return key or None
            self._others[sealed] = key
        return self._others[sealed]


class OtherAnswer(WireError):
    """A host answered a request for a challenge with another message, which may say why."""

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__("no challenge")
        self.message = message


def _of_file(secret: bytes) -> bytes:
    """A key for this purpose only: the same file authenticates the probe's records."""
    return hmac.new(secret, b"multi-node session", hashlib.sha256).digest()


def _about(token: object, client_nonce: object, host_nonce: object) -> bytes:
    """What both sides prove.

    Raises:
        WireError: a nonce is missing or too long.
    """
    for nonce in (client_nonce, host_nonce):
        if not isinstance(nonce, str) or len(nonce) != NONCE_DIGITS or not isinstance(token, str):
            raise WireError("no nonce")
    return json.dumps([token, client_nonce, host_nonce]).encode()


def _key(key: bytes, purpose: bytes, about: bytes) -> bytes:
    return hmac.new(key, purpose + b"\0" + about, hashlib.sha256).digest()


def _proof(key: bytes, purpose: bytes, about: bytes) -> str:
    return _key(key, purpose, about).hex()[:32]


def _holds(key: bytes, purpose: bytes, about: bytes, proof: object) -> bool:
    told = proof.encode("utf-8", "replace") if isinstance(proof, str) else b""
    return hmac.compare_digest(_proof(key, purpose, about).encode(), told)


def _digest(message: dict[str, Any]) -> bytes:
    return hashlib.sha256(encode_line(dict(sorted(message.items())))).digest()


def _name(message: dict[str, Any]) -> str:
    host = message.get("host")
    return host[:80] if isinstance(host, str) else ""
