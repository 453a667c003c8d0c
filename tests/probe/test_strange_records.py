"""A stranger in the store of a probe: broken, huge and lying records change nothing, and are counted."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.facts.probe import Kind, Observation, Probe, RankReport
from ddpdoctor.network.proof import NO_PROOF, Proof, SecretError, proof_of, secret_of
from ddpdoctor.network.tcpstore.client import Store, connect
from ddpdoctor.network.tcpstore.server import Server
from ddpdoctor.probe.rank_env import RankEnv, host_key
from ddpdoctor.probe.store_keys import StoreKeys

BROKEN = (
    b"\xff\xfe\x00",
    b"{",
    b"[]",
    b"5",
    b"null",
    b"{}",
    b'{"rank": "0"}',
    b'{"rank": 1e999, "host": 5}',
    b'{"rank": ' + b"9" * 400 + b"}",
    b"[" * 100_000,
    b'{"rank": 0, "host": {}, "pid": [], "started": null, "world_size": "x"}',
    b'{"common": {}, "ranks": [5, {"rank": []}, {"no such field": 1}]}',
    b'{"common": [], "ranks": {}}',
    b"x" * (8 << 20),
    zlib.compress(b"0" * (200 << 20)),
)
SHARED = Proof(b"a secret of the job", "probe store")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server("127.0.0.1", 0)
    yield server
    server.close()


def _env(server: Server, rank: int = 0) -> RankEnv:
    return RankEnv(
        rank=rank,
        world_size=2,
        local_rank=rank,
        local_world_size=1,
        node_rank=None,
        master_addr="127.0.0.1",
        master_port=server.port,
        uses_agent_store=False,
        prefix="",
        host="a",
        launcher="env://",
    )


def _store(server: Server) -> Store:
    return connect("127.0.0.1", server.port, "", 5.0)


@pytest.mark.parametrize("number", range(len(BROKEN)))
@pytest.mark.parametrize("proof", [NO_PROOF, SHARED], ids=["without a secret", "with a secret"])
def test_broken_records_are_left_out_and_counted(server: Server, number: int, proof: Proof) -> None:
    bad = BROKEN[number]
    stranger = _store(server)
    logs = ("arrivals", f"host/{host_key()}", "evidence", "reports", "unlike", "through")
    for key in (*logs, "world", "rank/0", "rank/1", "alike", "card/0", "verdict", "healthy"):
        stranger.set(key, bad + b"\n")
    keys = StoreKeys(_store(server), _env(server), proof)
    assert keys.arrive() is None
    keys.compare({"versions.torch": "2.5"})
    keys.publish("evidence", Observation(Kind.DIED, "rank 0 died"))
    keys.submit_report(RankReport(0, world_size=2))
    assert keys.missing() == [1]
    assert keys.local_peers() == []
    assert [each.message for each in keys.evidence()] == ["rank 0 died"]
    assert [each.rank for each in keys.gather()[1]] == [0]
    assert keys.unreported() == {}
    assert keys.card(0) is None
    assert keys.host_of(1) is None
    assert keys.verdict() is None
    assert keys.shared("healthy") == Probe()
    assert keys.decide(Probe(world_size=2)).world_size == 2
    assert keys.records.strange
    for store in (stranger, keys.store):
        store.close()


def test_random_bytes_in_any_key_raise_nothing(server: Server) -> None:
    source = random.Random(3)
    stranger = _store(server)
    whole = json.dumps(
        {"rank": 1, "host": "b", "pid": 3, "started": 1, "local_rank": None, "node_rank": 0, "world_size": 2}
    )
    keys = StoreKeys(_store(server), _env(server))
    for _ in range(200):
        text = bytearray(whole.encode())
        for _ in range(source.randrange(1, 6)):
            text[source.randrange(len(text))] = source.randrange(256)
        for key in ("arrivals", "evidence", "reports", "unlike", "rank/1"):
            stranger.set(key, bytes(text) + b"\n")
        keys.missing(), keys.evidence(), keys.gather(), keys.unreported(), keys.differences(), keys.host_of(1)
    for store in (stranger, keys.store):
        store.close()


def test_a_lie_counts_only_with_the_secret_of_the_job(server: Server) -> None:
    lie = {"rank": 0, "host": "evil", "pid": 1, "started": 1, "local_rank": 0, "node_rank": None, "world_size": 64}
    stranger = StoreKeys(_store(server), _env(server, 1))
    for key in ("world", "rank/0", "arrivals"):
        stranger.store.set(key, stranger.records.line(lie))
    honest = StoreKeys(_store(server), _env(server), SHARED)
    assert honest.arrive() is None
    assert honest.missing() == [1]
    assert set(honest.records.strange) == {"arrivals"}
    naive = StoreKeys(_store(server), _env(server))
    believing = naive.arrive()
    assert believing is not None
    assert believing.kind is Kind.WORLD_SIZE_DIFFERS
    for keys in (stranger, honest, naive):
        keys.store.close()


@pytest.mark.parametrize("steps", [1, 2, -9], ids=["one more", "as many as there are", "fewer than none"])
def test_a_counter_that_a_stranger_changed_lets_the_ranks_start_when_all_are_there(server: Server, steps: int) -> None:
    stranger = _store(server)
    ranks = [StoreKeys(_store(server), _env(server, rank)) for rank in range(2)]
    stranger.add("count/join", steps)
    ranks[0].arrive()
    assert ranks[0].count("join") is False
    ranks[1].arrive()
    assert ranks[1].count("join") is True
    for store in (stranger, *(each.store for each in ranks)):
        store.close()


def test_with_a_secret_a_stranger_reaches_no_counter_and_no_step(server: Server) -> None:
    stranger = _store(server)
    ranks = [StoreKeys(_store(server), _env(server, rank), SHARED) for rank in range(2)]
    for key in ("count/join", "hosts", "spoken", "judge"):
        stranger.add(key, 7)
    for step in ("join", "run", "end"):
        stranger.set(f"go/{step}", b"X")
    assert [(each.arrive(), each.count("join")) for each in ranks] == [(None, False), (None, True)]
    assert ranks[0].count_hosts() == 0
    assert ranks[0].is_judge()
    assert not ranks[0].have_all_reported()
    assert not ranks[0].store.check("go/join")
    for store in (stranger, *(each.store for each in ranks)):
        store.close()


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123\n")
    secret.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        secret_of({}, str(secret))
    secret.chmod(0o600)
    proof = proof_of({"DDPDOCTOR_SECRET_FILE": str(secret)}, "x")
    assert proof.is_given
    assert proof.opened(proof.sealed(b"text")) == b"text"
    assert Proof(secret_of({}, str(secret)), "y").opened(proof.sealed(b"text")) is None
    secret.write_text("short")
    with pytest.raises(SecretError, match="at least 16"):
        secret_of({}, str(secret))
    with pytest.raises(SecretError, match="No such file"):
        secret_of({}, str(tmp_path / "none"))
    assert not proof_of({"HOME": str(tmp_path)}, "x").is_given
