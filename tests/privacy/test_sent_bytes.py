"""Secrets of every kind in a launch line and in announced variables: none of them is in the bytes that go to other nodes."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

from commandline import doctor
from planted import planted

from ddpdoctor.facts.probe import Kind, Observation, RankReport
from ddpdoctor.network.tcpstore.client import connect
from ddpdoctor.network.tcpstore.server import Server
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.store_keys import StoreKeys

SHAPED = (
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "sk-proj-abcdEFGH1234ijklMNOP5678",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "0123456789abcdef0123456789abcdef01234567",
    "glpat-abcdefghij1234567890",
    "q8Zr2Lm9Xc4Vt7Bn1Kp6Wd3Y",
)
NAMED = (
    "--wandb-api-key={}",
    "--rdzv-conf=token={}",
    "https://x-access-token:{}@github.com/a/b.git",
    "postgres://user:{}@db.example.com/x",
    "api_key={}",
    "Authorization: Bearer {}",
    "--password={}",
)
PLANTED = {text: f"hunter2{number:02d}aB" for number, text in enumerate(NAMED)}
SECRETS = (*SHAPED, *PLANTED.values(), "plainword")


class Recorder:
    """A port that keeps what is sent to it and answers nothing."""

    def __init__(self) -> None:
        self.bytes = b""
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                link, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._record, args=(link,), daemon=True).start()

    def _record(self, link: socket.socket) -> None:
        with link:
            while chunk := link.recv(1 << 16):
                self.bytes += chunk


def test_a_launch_line_is_announced_without_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as d\nd.init_process_group('gloo')\n")
    recorder = Recorder()
    variables = {f"TORCH_NOTE_{number}": f"x {secret} y" for number, secret in enumerate(SHAPED)}
    variables |= {f"NCCL_NOTE_{number}": text.format(secret) for number, (text, secret) in enumerate(PLANTED.items())}
    words = [
        f"--rdzv-conf=note={','.join(SHAPED)}",
        *(f"--role={text.format(secret)}" for text, secret in PLANTED.items()),
    ]
    line = ["torchrun", "--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={recorder.port}"]
    with recorder.server:
        doctor(
            "check",
            "--no-probe",
            "--join-timeout=4",
            "--",
            *line,
            *words,
            "train.py",
            "--token",
            "plainword",
            env={**variables, "SLURM_JWT": "plainword", "PET_LOG_DIR": f"/tmp/{SHAPED[1]}"},
            cwd=tmp_path,
        )
    hellos = [json.loads(each) for each in recorder.bytes.split(b"\n") if each.startswith(b"{") and b'"hello"' in each]
    assert hellos
    assert "--node-rank=1" in hellos[0]["line"]["argv"]
    assert "TORCH_NOTE_0" in hellos[0]["line"]["environ"]
    assert [secret for secret in SECRETS if secret.encode() in recorder.bytes] == []


def test_no_kind_of_secret_in_a_line_or_a_variable_reaches_another_node(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as d\nd.init_process_group('gloo')\n")
    secrets = planted(80, copies=1)
    recorder = Recorder()
    variables = {each.kind.name: each.value for each in secrets if each.kind.name and each.kind.name[0] != "-"}
    own = {f"NCCL_NOTE_{at}": each.line for at, each in enumerate(secrets) if not each.kind.name}
    own |= {f"TORCH_{name}": value for name, value in variables.items()}
    options = [word for each in secrets if each.kind.name[:1] == "-" for word in (each.kind.name, each.value)]
    notes = [f"--role={each.line.strip()}" for each in secrets if not each.kind.name and " -" not in each.line]
    line = ["torchrun", "--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={recorder.port}"]
    with recorder.server:
        before = [f"{name}={value}" for name, value in variables.items()]
        doctor(
            *("check", "--no-probe", "--join-timeout=8", "--", *before, *line, *notes, "train.py", *options),
            env={**variables, **own},
            cwd=tmp_path,
        )
    assert b'"hello"' in recorder.bytes
    sent = recorder.bytes.decode("utf-8", "replace")
    assert [sent[(at := sent.index(each.value)) - 80 : at + 40] for each in secrets if each.value in sent] == []


def test_no_kind_of_secret_gets_into_the_store_of_a_probe() -> None:
    server = Server("127.0.0.1", 0)
    sent: list[bytes] = []
    rank_env = RankEnv(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        master_addr="127.0.0.1",
        master_port=server.port,
        uses_agent_store=False,
        prefix="",
        host="a",
        launcher="env://",
    )
    store = connect("127.0.0.1", server.port, "", 5.0)
    kept = store._send

    def send(request: bytes) -> None:
        sent.append(request)
        kept(request)

    store._send = send  # type: ignore[method-assign]
    keys = StoreKeys(store, rank_env)
    secrets = planted(81)
    for each in secrets:
        keys.publish("evidence", Observation(Kind.EXCEPTION, f"rank 0 failed: {each.line}", value=each.line))
    keys.submit_report(RankReport(0, error=secrets[0].line, nccl_warnings=tuple(each.line for each in secrets)))
    keys.compare({f"environ.{each.kind.name}": each.value for each in secrets if each.kind.name[:1] not in ("", "-")})
    store.close()
    server.close()
    told = b"".join(sent).decode("utf-8", "replace")
    assert "rank 0 failed" in told
    assert [each for each in secrets if each.value in told or each.value.replace("/", "\\/") in told] == []


def test_what_a_rank_says_in_the_store_holds_no_secret() -> None:
    server = Server("127.0.0.1", 0)
    sent: list[bytes] = []
    rank_env = RankEnv(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        master_addr="127.0.0.1",
        master_port=server.port,
        uses_agent_store=False,
        prefix="",
        host="a",
        launcher="env://",
    )
    store = connect("127.0.0.1", server.port, "", 5.0)
    kept = store._send

    def send(request: bytes) -> None:
        sent.append(request)
        kept(request)

    store._send = send  # type: ignore[method-assign]
    store_keys = StoreKeys(store, rank_env)
    words = " ".join([*SHAPED, *(text.format(secret) for text, secret in PLANTED.items())])
    store_keys.publish("evidence", Observation(Kind.EXCEPTION, f"rank 0 failed: {words}", value=words))
    store_keys.submit_report(RankReport(0, error=words, nccl_warnings=(words,), settings={"NCCL_NET": words}))
    store_keys.compare({f"environ.NCCL_NOTE_{number}": secret for number, secret in enumerate(SHAPED)})
    store.close()
    server.close()
    assert b"EXCEPTION".lower() in b"".join(sent)
    assert [secret for secret in SECRETS if secret.encode() in b"".join(sent)] == []
