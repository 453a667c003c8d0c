"""Nodes with the job's secret meet each other and nobody else; the secret itself is never sent."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lab.processes import need
from sessions import TOKEN, attend, free_port, meet, node

from ddpdoctor.app.verdicts import judge_nodes, rules_of_nodes
from ddpdoctor.facts.nodes import Nodes, Proves
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.multinode import session, udp_responder
from ddpdoctor.multinode.authentication import Authentication
from ddpdoctor.multinode.channel import NodeConnection, SessionKeys
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.messages import PROTOCOL, WireError, encode_line
from ddpdoctor.multinode.results import NotJoined, ReceivedVerdict, SessionResult
from ddpdoctor.network.munge import Munge
from ddpdoctor.rules import load
from ddpdoctor.rules.net.net520_node_not_authenticated import node_not_authenticated

CLAIMED = {"master-port-shared-by-jobs", "ddpdoctor-version-differs"}
SECRET = b"correct horse battery staple"


def with_secret(secret: bytes = SECRET) -> Authentication:
    return Authentication(secret)


def found_in(met: SessionResult | NotJoined, proves: str) -> list[Finding]:
    """What the rules say about the nodes that met, or about the one that stayed alone."""
    rules = rules_of_nodes([each for each in load(["net"]) if each.code == node_not_authenticated.code])
    if isinstance(met, SessionResult):
        nodes = Nodes(
            tuple(member.node for member in met.members),
            missing=met.missing,
            lacking=met.lacking,
            strangers=met.strangers,
            proves=proves,
        )
        return judge_nodes(rules, nodes, met.members, "").findings
    assert met.refused_by is not None
    return judge_nodes(rules, Nodes((met.me.node,), strangers=(met.refused_by,), proves=proves), (met.me,), "").findings


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every line that any node sends."""
    lines: list[bytes] = []
    seal = NodeConnection._sealed

    def record(self: NodeConnection, line: bytes) -> bytes:
        lines.append(seal(self, line))
        return lines[-1]

    monkeypatch.setattr(NodeConnection, "_sealed", record)
    return lines


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_nodes_with_one_secret_meet_and_never_send_it(address: str, sent: list[bytes]) -> None:
    port = free_port()
    nodes = [replace(node(rank, port), master_addr=address, addresses=(address,)) for rank in range(2)]
    host, other = meet(*(attend(each, proves=with_secret()) for each in nodes))
    assert isinstance(host, SessionResult)
    assert isinstance(other, ReceivedVerdict)
    assert len(host.members) == 2
    assert [link.works for link in host.links] == [True, True]
    assert host.strangers == ()
    everything = b"".join(sent)
    assert SECRET not in everything
    assert SECRET.hex().encode() not in everything
    hellos = [line for line in sent if b'"hello"' in line]
    assert hellos
    assert not any(line.startswith(b"{") for line in hellos), "facts are sent only after the proofs, and sealed"


@pytest.mark.parametrize(
    ("of_host", "of_other", "seen_by_host", "seen_by_other"),
    [
        (
            SECRET,
            None,
            "host1 has no secret; node 0 (host0) has a secret file",
            "host0 has a secret file; node 1 (host1) has no secret",
        ),
        (
            None,
            SECRET,
            "host1 has a secret file; node 0 (host0) has no secret",
            "host0 has no secret; node 1 (host1) has a secret file",
        ),
        (
            SECRET,
            SECRET[::-1],
            "host1 has another secret; node 0 (host0) has a secret file",
            "host0 has another secret; node 1 (host1) has a secret file",
        ),
    ],
    ids=["the host alone has one", "the other node alone has one", "they differ"],
)
def test_nodes_that_do_not_share_a_secret_both_learn_why_they_do_not_meet(
    of_host: bytes | None,
    of_other: bytes | None,
    seen_by_host: str,
    seen_by_other: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "SURE_SECONDS", 0.5)
    port, first, second = free_port(), Authentication(of_host), Authentication(of_other)
    host, other = meet(
        attend(node(0, port), proves=first, seconds=3.0), attend(node(1, port), proves=second, seconds=6.0)
    )
    assert isinstance(host, SessionResult)
    assert isinstance(other, NotJoined)
    assert [(each.message, each.worst) for each in found_in(host, first.proves)] == [(seen_by_host, Severity.ERROR)]
    assert [(each.message, each.worst) for each in found_in(other, second.proves)] == [(seen_by_other, Severity.ERROR)]


def test_a_stranger_who_knows_the_token_changes_nothing_and_is_named() -> None:
    port = free_port()

    async def stranger() -> dict[str, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_line(Member("liar", node(1, port)).hello(TOKEN)))
        told = json.loads(await reader.readline())
        assert await reader.read() == b""
        writer.close()
        return dict(told)

    async def late(seconds: float, visit: Any) -> Any:
        await asyncio.sleep(seconds)
        return await visit

    host, told, _ = meet(
        attend(node(0, port), proves=with_secret()),
        late(0.3, stranger()),
        late(1.0, attend(node(1, port), proves=with_secret())),
    )
    assert isinstance(host, SessionResult)
    assert told == {"ddpdoctor": PROTOCOL, "kind": "no-proof", "proves": Proves.FILE, "host": "host0"}
    assert [member.key for member in host.members] == ["host0", "host1"]
    assert [(each.host, each.address, each.proves) for each in host.strangers] == [("host1", "127.0.0.1", "")]
    assert [each.worst for each in found_in(host, Proves.FILE)] == [Severity.NOTE]


def test_a_job_of_the_same_user_is_told_apart_from_one_without_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SURE_SECONDS", 0.5)
    port = free_port()
    host, other = meet(
        attend(node(0, port), proves=with_secret(), seconds=3.0),
        attend(node(1, port, script="b.py"), token="other", proves=with_secret(), seconds=6.0),
    )
    assert isinstance(host, SessionResult)
    assert isinstance(other, NotJoined)
    assert other.other_job is not None
    assert [(each.script, each.proves) for each in host.strangers] == [("b.py", None)]


@pytest.fixture
def munge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A munged of this test's own, which the commands `munge` and `unmunge` of this process use."""
    need("munged", "munge", "unmunge")
    home = tmp_path / "munge"
    home.mkdir(mode=0o700)
    (home / "key").write_bytes(secrets.token_bytes(64))
    (home / "key").chmod(0o600)
    files = [f"--{name}-file={home / name}" for name in ("key", "pid", "log", "seed")]
    daemon = subprocess.Popen(["munged", "--foreground", "--force", f"--socket={home / 'socket'}", *files])
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("munge", "unmunge"):
        real = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
        (commands / name).write_text(f'#!/bin/sh\nexec {real} --socket={home / "socket"} "$@"\n')
        (commands / name).chmod(0o755)
    end = time.monotonic() + 20
    while not (home / "socket").exists() and time.monotonic() < end:
        time.sleep(0.02)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    try:
        yield commands
    finally:
        daemon.terminate()
        daemon.wait(10)


def test_in_a_slurm_job_munge_proves_who_belongs_to_it(munge: Path, sent: list[bytes]) -> None:
    port = free_port()
    first, second = (Authentication(munge=Munge.of(os.environ)) for _ in range(2))
    assert first.proves == Proves.MUNGE
    host, other = meet(attend(node(0, port), proves=first), attend(node(1, port), proves=second))
    assert isinstance(host, SessionResult)
    assert isinstance(other, ReceivedVerdict)
    assert len(host.members) == 2
    assert first._own is not None
    key = first._own[0]
    assert key not in b"".join(sent)
    assert key.hex().encode() not in b"".join(sent)


def test_outside_of_slurm_or_without_its_daemon_munge_is_not_used(munge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("munge", "unmunge"):
        (munge / name).write_text("#!/bin/sh\nexit 6\n")
    assert Munge.of(os.environ) is None
    monkeypatch.delenv("SLURM_JOB_ID")
    assert Munge.of(os.environ) is None


def test_what_another_user_sealed_is_not_opened(munge: Path) -> None:
    own = Munge.of(os.environ)
    assert own is not None
    sealed = own.sealed(b"a key")
    assert own.opened(sealed) == b"a key"
    assert own.opened(sealed) == b"a key", "a second process of this node opens the same message"
    assert Munge(own._uid + 1).opened(sealed) is None
    for strange in ("", "MUNGE:AAAA:", None, 7, "MUNGE:" + "A" * 9000 + ":", "-x"):
        assert own.opened(strange) is None


def _pair() -> tuple[bytes, bytes]:
    return secrets.token_bytes(32), secrets.token_bytes(32)


async def _received(change: Any) -> list[dict[str, Any]]:
    """What one side receives of three sealed lines that `change` was applied to on their way."""
    one, other = _pair()
    sender = NodeConnection(asyncio.StreamReader(), None)  # type: ignore[arg-type]
    sender.seal_with(SessionKeys(one, other))
    lines = [sender._sealed(encode_line({"n": number})) for number in range(3)]
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(change(lines)))
    reader.feed_eof()
    receiver = NodeConnection(reader, None)  # type: ignore[arg-type]
    receiver.seal_with(SessionKeys(other, one))
    found = []
    while message := await receiver.receive():
        found.append(message)
    return found


def test_lines_on_a_proven_connection_cannot_be_changed_repeated_or_left_out() -> None:
    assert asyncio.run(_received(lambda lines: lines)) == [{"n": 0}, {"n": 1}, {"n": 2}]
    changes = {
        "changed": lambda lines: [lines[0].replace(b"0", b"9")],
        "repeated": lambda lines: [lines[0], lines[0]],
        "left out": lambda lines: [lines[1]],
        "without a proof": lambda lines: [b'{"n": 0}\n'],
    }
    for change in changes.values():
        with pytest.raises(WireError):
            asyncio.run(_received(change))


def test_only_a_signed_message_says_that_a_node_gave_up() -> None:
    own, message = with_secret(), {"kind": "gone", "key": "host1", "token": TOKEN}

    async def judged() -> list[bool]:
        signed = await own.signed(message)
        old = {**signed, "at": signed["at"] - 3600}
        return [
            await own.has_signed(each)
            for each in (signed, message, {**signed, "key": "host2"}, old, {**signed, "proof": 7})
        ]

    assert asyncio.run(judged()) == [True, False, False, False, False]
    assert asyncio.run(Authentication().has_signed(message)) is True
    assert udp_responder.MOST_GONE < 1024


@pytest.mark.parametrize("proves", [Proves.NOTHING, Proves.FILE])
def test_what_a_stranger_claims_is_a_note_where_nodes_prove_who_they_are(proves: str) -> None:
    port = free_port()
    claims = (
        encode_line({"ddpdoctor": 9, "kind": "hello", "token": TOKEN, "node": {"host": "old"}}),
        encode_line(Member("evil", node(7, port, script="b.py")).hello("x")),
    )

    async def stranger() -> None:
        await asyncio.sleep(0.3)
        for claim in claims:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(claim)
            await reader.read()
            writer.close()

    async def late() -> Any:
        await asyncio.sleep(0.8)
        return await attend(node(1, port), proves=own)

    own = with_secret() if proves else Authentication()
    host, _, other = meet(attend(node(0, port), proves=own), stranger(), late())
    assert isinstance(host, SessionResult)
    assert isinstance(other, ReceivedVerdict)
    members = tuple(member.node for member in host.members)
    nodes = Nodes(members, expected=2, strangers=host.strangers, proves=proves)
    rules = rules_of_nodes([each for each in load(["launch", "versions"]) if each.name in CLAIMED])
    found = {each.name: each.worst for each in judge_nodes(rules, nodes, host.members, "").findings}
    assert found.keys() == CLAIMED
    assert (set(found.values()) == {Severity.NOTE}) is bool(proves)
