"""Secrets of many kinds, with made-up values that are built when a test runs, and values that only look like secrets.

The values have the published shapes but no scanner finds them in this file. A *kind* is one name or one shape; every kind
is planted several times.
"""

# ruff: noqa: SIM905

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["COPIES", "KINDS", "Kind", "Secret", "planted"]

COPIES = 3
"""How often every kind is planted, each time with another value."""
HEX, LOWER, BASE62 = "0123456789abcdef", string.ascii_lowercase + string.digits, string.ascii_letters + string.digits
BASE64 = BASE62 + "+/"
UPPER = string.ascii_uppercase + string.digits
WORDS = ("winter", "orange", "falcon", "harbor", "violet", "copper", "meadow", "rocket", "silver", "tundra")

Maker = Callable[[random.Random], str]


@dataclass(frozen=True)
class Kind:
    """One kind of secret: `name` announces it ("" if the value alone shows it), `make` builds a value.

    `line` is how it stands in a text: `{}` is the value.
    """

    title: str
    make: Maker
    name: str = ""
    line: str = "{}"


@dataclass(frozen=True)
class Secret:
    """One planted value of a kind."""

    kind: Kind
    value: str

    @property
    def line(self) -> str:
        """The text that it stands in."""
        return self.kind.line.replace("{}", self.value)


def _random(alphabet: str, length: int, prefix: str = "", suffix: str = "") -> Maker:
    def make(source: random.Random) -> str:
        while True:  # a value without a digit or without a letter is not what an issuer gives
            text = "".join(source.choices(alphabet, k=length))
            if length < 8 or alphabet.isalpha() or (any(c.isdigit() for c in text) and any(c.isalpha() for c in text)):
                return prefix + text + suffix

    return make


def _password(source: random.Random) -> str:
    """What a person chooses."""
    return (
        f"{source.choice(WORDS).capitalize()}{source.choice(WORDS)}{source.randrange(10, 99)}{source.choice('!#.,')}"[
            :-1
        ]
    )


def _words(source: random.Random) -> str:
    """A password of letters only."""
    return "".join(source.sample(WORDS, 3))


def _uuid(source: random.Random) -> str:
    text = "".join(source.choices(HEX, k=32))
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _jwt(source: random.Random) -> str:
    return ".".join(
        ("ey" + "J" + "".join(source.choices(BASE62, k=n))) if n < 60 else "".join(source.choices(BASE62, k=n))
        for n in (17, 40, 64)
    )


_PASSWORDS = """
DB_PASS SMTP_PASS LDAP_BIND_PW MYSQL_PWD PGPASSWORD REDIS_PASSWORD MLFLOW_TRACKING_PASSWORD ES_PASSWORD GRAFANA_PASS
MINIO_ROOT_PASSWORD RABBITMQ_DEFAULT_PASS DOCKER_PASSWORD SSH_PASSPHRASE SUDO_PW ADMIN_PASSWD KEYSTORE_PASS
BORG_PASSPHRASE RESTIC_PASSWORD TRUSTSTORE_PW MAIL_PWD FTP_PASS VNC_PW JUPYTER_PASSWORD NEO4J_PASS CLICKHOUSE_PASSWORD
SNOWFLAKE_PWD ARTIFACTORY_PASSWORD NEXUS_PASS KAFKA_SASL_PASSWORD KRB5_PASSWORD
""".split()
_TOKENS = """
HF_TOKEN HUGGING_FACE_HUB_TOKEN SNYK_TOKEN CONSUL_HTTP_TOKEN NOMAD_TOKEN VAULT_TOKEN GITHUB_TOKEN GITLAB_TOKEN
CI_JOB_TOKEN NPM_TOKEN PYPI_TOKEN DIGITALOCEAN_TOKEN SLACK_BOT_TOKEN TELEGRAM_TOKEN DISCORD_TOKEN NETLIFY_AUTH_TOKEN
CLOUDFLARE_API_TOKEN REPLICATE_API_TOKEN NEPTUNE_API_TOKEN SENTRY_AUTH_TOKEN DATABRICKS_TOKEN PREFECT_TOKEN DAGSTER_TOKEN
AWS_SESSION_TOKEN GH_PAT AZURE_DEVOPS_PAT ROBOFLOW_TOKEN JUPYTER_TOKEN KUBE_TOKEN SLURM_JWT RUNPOD_BEARER
""".split()
_API_KEYS = """
WANDB_API_KEY WANDB_KEY LIGHTNING_API_KEY COMET_API_KEY OPENAI_API_KEY ANTHROPIC_API_KEY MISTRAL_API_KEY TOGETHER_API_KEY
VAST_API_KEY VAST_KEY COHERE_API_KEY GROQ_API_KEY DD_API_KEY PINECONE_API_KEY LANGSMITH_API_KEY AWS_SECRET_ACCESS_KEY
AZURE_STORAGE_KEY AZURE_CLIENT_SECRET GOOGLE_API_KEY KAGGLE_KEY NGC_API_KEY STRIPE_KEY S3_SECRET MINIO_SECRET_KEY
FERNET_KEY APP_LICENSE LICENSE_KEY NVIDIA_LICENSE_TOKEN SIGNING_KEY ENCRYPTION_KEY JWT_SECRET DJANGO_SECRET
OAUTH_CLIENT_SECRET TWILIO_AUTH MAILGUN_KEY ALGOLIA_ADMIN_KEY CLEARML_API_SECRET_KEY MLFLOW_S3_CREDS WEBHOOK_SECRET
BASIC_AUTH SESSION_COOKIE TOTP_SEED_SECRET PAGERDUTY_ROUTING_KEY SCALEWAY_SECRET OCI_PRIVATE_KEY TELEMETRY_CREDENTIALS
""".split()
_OPTIONS = """
--wandb-key --wandb-api-key --hf-token --hub_token --api-key --token --password --db-password --auth --secret-key
--aws-secret --access-key --mlflow-password --neptune-api-token --comet-key --passphrase --http-auth --credentials --license-key
""".split()

_SHAPES: tuple[tuple[str, Maker], ...] = (
    ("Hugging Face token", _random(string.ascii_letters, 34, "hf" + "_")),
    ("Hugging Face organisation token", _random(string.ascii_letters, 34, "api_" + "org_")),
    ("AWS access key id", _random(UPPER.translate(str.maketrans("", "", "0189")) + "23", 16, "AK" + "IA")),
    ("AWS temporary key id", _random(UPPER.translate(str.maketrans("", "", "0189")) + "23", 16, "AS" + "IA")),
    ("Google API key", _random(BASE62, 35, "AI" + "za")),
    ("Google OAuth token", _random(BASE62, 60, "ya" + "29.")),
    ("Google client secret", _random(BASE62, 28, "GO" + "CSPX-")),
    ("GitHub token", _random(BASE62, 36, "gh" + "p_")),
    ("GitHub app token", _random(BASE62, 36, "gh" + "s_")),
    ("GitHub fine-grained token", _random(BASE62, 82, "github" + "_pat_")),
    ("GitLab token", _random(BASE62, 20, "gl" + "pat-")),
    ("GitLab runner token", _random(BASE62, 20, "gl" + "rt-")),
    ("Slack bot token", _random(BASE62, 24, "xo" + "xb-123456789012-123456789012-")),
    ("Slack webhook", _random(BASE62, 24, "https://hooks.slack" + ".com/services/T0AB1CD2E/B0AB1CD2E/")),
    ("Discord webhook", _random(BASE62, 68, "https://discord.com/api/web" + "hooks/123456789012345678/")),
    ("OpenAI project key", _random(BASE62, 48, "sk-" + "proj-")),
    ("OpenAI key", _random(BASE62, 48, "sk" + "-")),
    ("Anthropic key", _random(BASE62, 93, "sk-" + "ant-api03-", "AA")),
    ("Stripe key", _random(BASE62, 24, "sk" + "_live_")),
    ("SendGrid key", lambda source: "S" + "G." + _random(BASE62, 22)(source) + "." + _random(BASE62, 43)(source)),
    ("Twilio key", _random(HEX, 32, "S" + "K")),
    ("Mailgun key", _random(HEX, 32, "ke" + "y-")),
    ("npm token", _random(BASE62, 36, "np" + "m_")),
    ("PyPI token", _random(BASE62, 80, "py" + "pi-AgEIcHlwaS5vcmc")),
    ("Docker token", _random(BASE62, 27, "dckr" + "_pat_")),
    ("DigitalOcean token", _random(HEX, 64, "do" + "p_v1_")),
    ("Databricks token", _random(HEX, 32, "da" + "pi")),
    ("Vault token", _random(BASE62, 94, "hv" + "s.")),
    (
        "Terraform Cloud token",
        lambda source: _random(BASE62, 14)(source) + ".atlas" + "v1." + _random(BASE62, 64)(source),
    ),
    ("Grafana token", _random(BASE62, 32, "gl" + "sa_", "_1a2b3c4d")),
    ("Grafana cloud token", _random(BASE62, 60, "gl" + "c_")),
    ("Linear key", _random(BASE62, 40, "lin" + "_api_")),
    ("Notion token", _random(BASE62, 46, "nt" + "n_")),
    ("Shopify token", _random(HEX, 32, "shp" + "at_")),
    ("Postman key", lambda source: "PM" + "AK-" + _random(HEX, 24)(source) + "-" + _random(HEX, 34)(source)),
    ("Pulumi token", _random(HEX, 40, "pu" + "l-")),
    ("NVIDIA API key", _random(BASE62, 64, "nv" + "api-")),
    ("Replicate token", _random(BASE62, 37, "r" + "8_")),
    ("Groq key", _random(BASE62, 52, "gs" + "k_")),
    ("xAI key", _random(BASE62, 80, "xa" + "i-")),
    ("Perplexity key", _random(BASE62, 48, "pp" + "lx-")),
    ("Cerebras key", _random(LOWER, 48, "cs" + "k-")),
    ("LangSmith key", _random(HEX, 32, "lsv2" + "_pt_", "_1a2b3c4d5e")),
    ("W&B key of the new form", _random(BASE62, 60, "wandb" + "_v1_")),
    ("RunPod key", _random(UPPER, 42, "rp" + "a_")),
    ("Fly.io token", _random(BASE62, 43, "fo" + "1_")),
    ("Supabase key", _random(HEX, 40, "sb" + "p_")),
    (
        "Tailscale key",
        lambda source: "tskey" + "-auth-" + _random(BASE62, 12)(source) + "-" + _random(BASE62, 32)(source),
    ),
    ("1Password token", _random(BASE64, 260, "op" + "s_eyJ")),
    ("age key", _random("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58, "AGE-SECRET" + "-KEY-1")),
    ("JSON web token", _jwt),
    ("Azure client secret", _random(BASE62, 31, "abc8" + "Q~")),
    ("Azure storage key", _random(BASE64, 86, "", "==")),
    ("Telegram bot token", _random(BASE62, 34, "1234567890:A")),
    ("Fireworks key", _random(BASE62, 22, "f" + "w_")),
    ("Sentry token", _random(HEX, 64, "sntry" + "u_")),
    ("Artifactory key", _random(BASE62, 69, "AKC" + "p8")),
    ("New Relic key", _random(UPPER, 27, "NR" + "AK-")),
)

_PLACES: tuple[tuple[str, str, Maker], ...] = (
    ("URL of a database", "postgres://trainer:{}@db.example.com:5432/runs", _password),
    ("URL of Redis without a user", "redis://:{}@cache.example.com:6379/0", _password),
    ("URL of MongoDB", "mongodb+srv://user:{}@cluster0.example.net/x", _password),
    ("URL of a repository", "https://x-access-token:{}@github.com/a/b.git", _random(BASE62, 30)),
    ("AMQP URL", "amqp://guest:{}@mq.example.com:5672", _password),
    (
        "signed Azure URL",
        "https://x.blob.core.windows.net/c/f?sv=2022-11-02&sr=b&sig={}&se=2027",
        _random(BASE62, 43, "", "%3D"),
    ),
    ("signed S3 URL", "https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={}", _random(HEX, 64)),
    ("bearer header", "Authorization: Bearer {}", _random(BASE62, 40)),
    ("basic header", "Authorization: Basic {}", _random(BASE62, 30, "", "==")),
    ("curl user", "curl -u admin:{} https://api.example.com/x", _password),
    ("header of a key", "curl -H 'X-API-Key: {}' https://api.example.com/x", _random(LOWER, 32)),
    ("aws configure", "aws configure set aws_secret_access_key {}", _random(BASE64, 40)),
    ("wandb login", "wandb login {}", _random(HEX, 40)),
    ("huggingface-cli login", "huggingface-cli login --token {}", _random(BASE62, 34, "hf" + "_")),
    ("docker login", "docker login -u me -p {} registry.example.com", _password),
    ("sshpass", "sshpass -p {} ssh gpu-07 nvidia-smi", _password),
    ("mysql", "mysql -h db -u root -p{} runs", _password),
    ("minio alias", "mc alias set store https://minio.example.com admin {}", _password),
    ("invalid token", "wandb: ERROR API key is invalid: invalid token {}", _random(HEX, 40)),
    ("incorrect key", "Incorrect API key provided: {}. You can find your API key at", _random(BASE62, 32)),
    ("private_key_id", '"private_key_id": "{}",', _random(HEX, 40)),
    ("client_secret in JSON", '{"client_id": "x", "client_secret": "{}"}', _random(BASE62, 32)),
    ("manifest variable", "  - name: WANDB_API_KEY\n    value: {}\n", _random(HEX, 40)),
    ("Python keyword", 'wandb.login(key="{}")', _random(HEX, 40)),
    ("Python assignment", 'os.environ["HF_TOKEN"] = "{}"', _random(BASE62, 34)),
    (
        "connection string",
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={};EndpointSuffix=core.windows.net",
        _random(BASE64, 86, "", "=="),
    ),
    ("password in a sentence", "login failed for user trainer with password '{}'", _password),
    ("netrc", "machine api.wandb.ai login user password {}", _random(HEX, 40)),
    ("MUNGE credential", "MUNGE:{}:", _random(BASE64, 80)),
    ("rejected login", "401 Unauthorized for token: {}", _random(LOWER, 32)),
)

KINDS: tuple[Kind, ...] = (
    *(Kind(name, _password if at % 3 else _words, name, f"{name}={{}}") for at, name in enumerate(_PASSWORDS)),
    *(Kind(name, _random(BASE62, 28 + at), name, f"{name}={{}}") for at, name in enumerate(_TOKENS)),
    *(
        Kind(name, (_random(HEX, 32), _uuid, _random(BASE62, 32), _random(BASE64, 40))[at % 4], name, f"{name}={{}}")
        for at, name in enumerate(_API_KEYS)
    ),
    *(
        Kind(option, (_random(BASE62, 30), _password)[at % 2], option, f"{option} {{}}")
        for at, option in enumerate(_OPTIONS)
    ),
    *(Kind(title, make) for title, make in _SHAPES),
    *(Kind(title, make, line=line) for title, line, make in _PLACES),
)


def planted(seed: int, kinds: Iterable[Kind] = KINDS, copies: int = COPIES) -> list[Secret]:
    """`copies` secrets of every kind; the same for the same seed."""
    source = random.Random(seed)
    return [Secret(kind, kind.make(source)) for kind in kinds for _ in range(copies)]
