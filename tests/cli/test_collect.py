"""`collect`: nothing secret leaves the machine, hosts may have aliases, every rank is told, and what was written is read back."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.facts.codec import schema_names
from ddpdoctor.facts.record import Facts
from ddpdoctor.privacy.aliases import with_aliases
from ddpdoctor.privacy.host_names import host_names_in, hosts_in
from ddpdoctor.privacy.redaction import REMOVED, redact

NAMES = """
    TORCH_API_KEY NCCL_TOKEN SLURM_JWT SLURM_MUNGE_KEY ACCELERATE_HUB_TOKEN TORCH_SECRET OMPI_MCA_password UCX_AUTH_KEY
    RAY_TRAIN_CREDENTIALS MKL_ACCESS_KEY PYTORCH_PRIVATE_KEY FSDP_WANDB_API_KEY GLOO_PASSWD DEEPSPEED_PASSPHRASE
    NCCL_SESSION_COOKIE TORCHELASTIC_AUTH CUDA_SECRET_VALUE NVIDIA_API_KEY PET_PASS SLURM_DB_PWD
"""
BY_NAME = {name: f"plain{number:03d}word" for number, name in enumerate(NAMES.split())}
BY_SHAPE = (
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "sk-proj-abcdEFGH1234ijklMNOP5678",
    "sk-ant-api03-abcdefghijklmnop",
    "xoxb-123456789012-abcdefGHIJKL",
    "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
    "ya29.a0AfH6SMBx1234567890abcdef",
    "glpat-abcdefghij1234567890",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAw",
    "dckr_pat_abcdefghijklmnopqrstuvwxyz",
    "hvs.CAESIJ1234567890abcdefghijklmn",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "0123456789abcdef0123456789abcdef01234567",
    "dapi0123456789abcdef0123456789abcdef",
    "SG.abcdefghijklmnopqrst.abcdefghijklmnopqrst",
    "R4nd0mB64+abcdEFGHijklMNOPqrstUVWXyz01",
)
IN_TEXT = (
    ("postgres://user:{}@db.example.com/x", "hunter2a"),
    ("https://x-access-token:{}@github.com/a/b.git", "hunter2b"),
    ("redis://:{}@cache:6379", "hunter2c"),
    ("Authorization: Bearer {}", "hunter2d-hunter2d"),
    ("--wandb-api-key={}", "hunter2e"),
    ("train.py --password {} --lr 1", "hunter2f"),
    ("AccountName=a;AccountKey={};EndpointSuffix=x", "hunter2g"),
    ("https://a.blob.core.windows.net/c?sv=2020&sig={}", "hunter2h%2Fx"),
    ("curl -u admin:{} http://x", "hunter2i"),
    ('{{"password": "{}"}}', "hunter2j"),
    ("MYSQL_PWD={}", "hunter2k"),
    ("token: '{}'", "hunter2l"),
    ("aws_secret_access_key = {}", "hunter2m"),
    ("api-key:{}", "hunter2n"),
    ("x-api-key={}&y=1", "hunter2o"),
    ("ftp://bob:{}@host/", "hunter2p"),
    ("ssh_passphrase={}", "hunter2q"),
    ("client_secret={},z", "hunter2r"),
    ("db_password='{}'", "hunter2s"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMII{}\n-----END RSA PRIVATE KEY-----", "hunter2t"),
)


def test_sixty_secrets_are_planted_and_none_is_found(tmp_path: Path) -> None:
    shaped = {f"NCCL_NOTE_{number}": f"before {value} after" for number, value in enumerate(BY_SHAPE)}
    told = {f"SLURM_NOTE_{number}": text.format(value) for number, (text, value) in enumerate(IN_TEXT)}
    planted = [*BY_NAME.values(), *BY_SHAPE, *(value for _, value in IN_TEXT)]
    assert len(planted) == 60
    done = doctor("collect", "-o", "facts.json", cwd=tmp_path, env={**BY_NAME, **shaped, **told})
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "facts.json").read_text()
    saved = json.loads(text)["environ"]["variables"]
    assert {*shaped, *told} <= saved.keys()
    assert [each for each in planted if each in text or each in done.stdout or each in done.stderr] == []


@pytest.mark.parametrize(
    "text",
    [
        "/home/user/.cache/huggingface/hub/models--meta-llama--Llama-2-7b",
        "GPU-5a3b1c2d-1234-5678-9abc-def012345678",
        "NCCL version 2.21.5+cuda12.4",
        "tcp://10.0.0.1:29500",
        "token bucket filter is on",
        "a100-sxm4-80gb-node-0001.cluster.example.com",
        "train.py --tokenizer bert --max-tokens 512",
        "/usr/lib/x86_64-linux-gnu/libcudart.so.12",
        "pytorch-job-master-0.default.svc.cluster.local",
        "pad_token_id: 0, eos_token='</s>', tokens_per_second=12345, tokens: 1.2M",
        "--token-budget 4096 --signature-def serving_default --max_tokens 512",
        "Basic training of token embeddings; signature: forward(x)",
        "docker run -u 1000:1000 image; PWD=/home/user; password_reset.py:12",
        "token = tokens[:, i]",
        "http://10.0.0.1:8080/user@corp",
        "Monkey /sys/kernel/debug/0123456789abcdef01234; key /usr/lib/x86_64-linux-gnu/libfoo12345678901234.so",
        "see docs/webhook/setup.md of pytorchjob-name-worker-7f9c8d6b5-x2x9z",
        "password: required, secretRef: wandb-login, --password-file /etc/pw",
        "python -m deepspeed.launcher.launch --world_info=eyJub2RlMSI6IFswLCAxLCAyLCAzXSwgIm5vZGUyIjogWzAsIDFdfQ==",
        "srun -p gpu -u train.py; mkdir -p /data/x; ssh -p 22 host; mc alias list; run wandb login first",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --wandb-key {} --lr 1",
        "COMET_KEY={}",
        "step 3: WANDB_API_KEY={} was read",
        "Authorization: Bearer {}",
        "sshpass -p {} ssh node2 hostname",
        "docker login -u me -p {}",
        "pip install -i https://me:{}@pypi.example.com/simple x",
        "Command '['/opt/py', 'train.py', '--password', '{}']' died",
        "machine api.wandb.ai login user password {}",
        "Cookie: a={}; b={}",
        '{{"auths":{{"ghcr.io":{{"auth":"{}"}}}}}}',
        "os.environ['HF_TOKEN'] = '{}'",
        "secret_key=b'{}'",
        "REDISCLI_AUTH={} SSHPASS={} GITHUB_PAT={} bindpw={}",
        "curl -ume:{} http://me:p@{}@node1/",
        "requests.get(url, auth=('me', '{}'))",
        "authorization=Bearer {}",
        "amqp://me:some/{}@mq:5672",
        "sshpass -p 'two {}' ssh node2",
        "redis-cli -h h -a {} ping",
        "smbclient //h/s -U me%{}",
        "ipmitool -H bmc -U admin -P {} power status",
        "openssl rsa -passin pass:{} -in k",
        "curl --proxy-user me:{} http://x",
        "otp secret otpauth://totp/x?secret={}",
        "pagerduty routing_key=0123456789abcdefghij{}",
        "mc alias set store http://minio:9000 root {}",
        "vault login {}",
        "mc --quiet alias set store http://minio:9000 root {}",
        "Authorization: Splunk {}",
        "rpcclient -U me%{} host",
        "gh secret set NAME --body {}",
        "jdbc:oracle:thin:me/{}@host:1521:db",
        "mariadb -u root -p{} db",
        "lftp -u me,{} sftp://host",
        "sqlplus me/{}@db",
        "7z x -p{} data.7z",
        "unzip -P {} data.zip",
        "curl -U me:{} -x http://proxy https://host",
        "> x-honeycomb-team: {}",
        "train.py --otp {} --jwt={}",
        "kind: Secret\nmetadata:\n  name: a\nstringData:\n  hub: {}\n",
        "data:\n  hub: {}\nkind: Secret\n",
        "- name: HF_TOKEN\n  value: {}",
        '{{"name":"DB_PASSWORD","value":"{}"}}',
        "machine h\n  login me\n  password {}\n",
        "userPassword: {{SSHA}}0123456789abcdef{}",
    ],
)
def test_a_secret_within_a_line_is_removed(text: str) -> None:
    assert "hunter22" not in redact(text.format(*["hunter22"] * text.count("{}")))


@pytest.mark.parametrize(
    "text",
    [
        f"AGE-SECRET-KEY-1{'A2Z7' * 12}",
        f"sbp_{'0a1b' * 10}",
        "https://me.webhook.example.com/hook/1b2c3d4e-0000-1111@x/In/2c3d",
        "q7w2e9r4t1y6u3i8o5p0a9s2d7f4g1h6j3",
        "csk-q7w2e9r4t1y6u3i8o5p0a9s2d7f4",
        "tgp_v1_Yx3Qd9Lm2Zr8Kt5Vb1Nc7Wf4",
        "LTAI5tQ8xW3eR7yU1iO9pA2s",
        f"MUNGE:AwQDAAC{'x9Z2' * 9}:",
        "xkeysib-0123456789abcdef0123456789abcdef-a1B2c3D4e5F6g7H8",
    ],
)
def test_what_looks_like_a_token_is_removed(text: str) -> None:
    assert text[-8:] not in redact(f"before {text} after")


@pytest.mark.parametrize(
    "line",
    [
        "tgp_v1_Yx3Qd9Lm2Zr8Kt5Vb1Nc7Wf4 was read",
        "class WeightInt4PackMatmulTemplateForAll(Base): QLinearPointwisePT2EWithBias",
        "libc10.so(_ZN4c10d16ProcessGroupNCCL8WorkNCCL17checkTimeoutEv+0x1f)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32",
    ],
)
def test_of_a_log_only_what_is_surely_a_token_is_removed(line: str) -> None:
    saved = redact({"text": line})["text"]
    assert (saved != line) is ("was read" in line)


def test_a_word_of_a_command_line_is_removed_to_its_end() -> None:
    words = ["train.py", "+trainer.secret=two words", "--smtp-pass", "mailpw", "--cookie", "a=b", "--lr", "0.1"]
    kept = " ".join(redact(words))
    assert redact(["az", "login", "-u", "app", "-p", "az pw"])[-1] == REMOVED
    assert not any(secret in kept for secret in ("words", "mailpw", "a=b"))
    assert kept.endswith("--lr 0.1")


def test_long_words_cost_no_time() -> None:
    begun = time.process_time()
    for word in ("a" * 20_000, "token" * 2_000, "a.b-" * 4_000, "token" + " " * 9_000, "openssl " * 9_000):
        redact(word)
    assert time.process_time() - begun < 30.0  # by squares it would be minutes


def test_the_word_behind_an_option_is_removed_and_hashes_of_versions_stay() -> None:
    assert redact(["train.py", "--token", "abc", "--lr", "1"])[2] != "abc"
    commit = {"git_version": "0123456789abcdef0123456789abcdef01234567"}
    assert redact(commit) == commit


SAVED = {
    "hostname": "gpu-017",
    "environ": {
        "variables": {
            "MASTER_ADDR": "gpu-001.cluster.example.com",
            "SLURM_JOB_NODELIST": "gpu-[001-002,017]",
            "RANK": "3",
        }
    },
    "net": {
        "hostname": "gpu-017",
        "own_name": {"name": "gpu-017", "addresses": ["10.1.2.17"]},
        "interfaces": [{"addresses": [{"ip": "10.1.2.17"}, {"ip": "fe80::1ff:fe23:4567:890a"}, {"ip": "127.0.0.1"}]}],
        "route": "10.1.2.0/24 via 10.1.2.1",
        "mac": "aa:bb:cc:dd:ee:ff",
    },
}


def test_hosts_and_addresses_have_aliases_that_are_the_same_everywhere() -> None:
    found = with_aliases(SAVED, host_names_in(SAVED))
    text = json.dumps(found)
    for name in ("gpu-0", "cluster", "10.1.2.", "fe80::1ff", "dd:ee:ff"):
        assert name not in text
    assert "127.0.0.1" in text
    variables = found["environ"]["variables"]
    assert variables["SLURM_JOB_NODELIST"].split(",") == [
        variables["MASTER_ADDR"], variables["SLURM_JOB_NODELIST"].split(",")[1], found["hostname"]
    ]  # fmt: skip
    assert found["net"]["own_name"]["addresses"][0] == found["net"]["interfaces"][0]["addresses"][0]["ip"]
    network, _, gateway = found["net"]["route"].split()
    assert network.rpartition(".")[0] == gateway.rpartition(".")[0]
    assert network.endswith(".0/24")


TOLD = {
    "hostname": "gpu",
    "environ": {
        "variables": {
            "LSB_MCPU_HOSTS": "lsf-c 4 lsf-d 4",
            "SM_HOSTS": '["algo-1","algo-2"]',
            "OMPI_MCA_orte_hnp_uri": "12;tcp://10.9.8.7:41234",
            "MASTER_ADDR": "gpu17.hpc.example.edu",
            "NCCL_IB_ADDR_FAMILY": "AF_INET",
        }
    },
    "gpu": {"devices": []},
    "launch": {"lines": [{"source": "mpirun -H hgx1:8,hgx2:8 torchrun --rdzv-endpoint=head-77:29400 t.py"}]},
    "hang": {"processes": [{"command": "train.py --dist-url tcp://disturl5:23456 --exclude logs"}]},
    "log": {
        "lines": [
            {"text": "nfs: server nas01.example.edu not responding"},
            {"text": "GPU17 lost; CIFS: \\\\winfs3\\share; mgs77@tcp; the server process is gone; logs"},
        ],
        "sources": [{"name": "/logs/rank0_gpu17.log"}],
    },
}


def test_hosts_have_aliases_wherever_they_are_told_and_the_formats_words_stay() -> None:
    kept = schema_names(Facts)
    found = with_aliases(TOLD, host_names_in(TOLD), kept)
    text = json.dumps(found).lower()
    names = "lsf-c lsf-d algo-2 10.9.8.7 gpu17 example.edu hgx1 hgx2 head-77 disturl5 nas01 winfs3 mgs77"
    assert [name for name in names.split() if name in text] == []
    assert {"hostname", "gpu"} <= kept & found.keys()
    assert found["environ"]["variables"]["NCCL_IB_ADDR_FAMILY"] == "AF_INET"
    assert found["log"]["lines"][1]["text"].endswith("the server process is gone; logs")
    assert found["hang"]["processes"][0]["command"].endswith("--exclude logs")


def test_slurms_lists_are_expanded() -> None:
    assert hosts_in("gpu[001-003,7],login") == ("login", "gpu001", "gpu002", "gpu003", "gpu7")


@given(
    st.recursive(
        st.none() | st.text(max_size=60), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner)
    )
)
def test_any_value_keeps_its_form(value: Any) -> None:
    cleaned = redact(value)
    assert type(cleaned) is type(value)
    assert type(with_aliases(cleaned, ("ab",))) is type(value)
    assert redact(cleaned) == cleaned


def test_aliased_facts_are_judged_like_others(tmp_path: Path) -> None:
    done = doctor("collect", "--hosts-as-aliases", "-o", "facts.json", cwd=tmp_path, env={"MASTER_ADDR": "gpu-001"})
    assert done.returncode == 0, done.stderr
    assert "gpu-001" not in (tmp_path / "facts.json").read_text()
    for words in (("net", "--facts", "facts.json"), ("triage", "facts.json")):
        assert doctor(*words, cwd=tmp_path).returncode in (0, 1)


@pytest.mark.torch
def test_every_rank_under_a_launcher_is_in_one_file(tmp_path: Path) -> None:
    import subprocess

    words = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "-m",
        "ddpdoctor",
        "collect",
        "-o",
        str(tmp_path / "facts.json"),
    ]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "facts.json").read_text())
    own = [
        each for each in saved["hang"]["processes"] if str(tmp_path) in each["command"]
    ]  # others may run here as well
    assert [each["rank"] for each in own] == [0, 1]
    assert "--nproc-per-node=2" in saved["launch"]["lines"][0]["source"]
