"""Further kinds of secrets, written without looking at how the filter works and in other words than `planted`.

The names are those of services and tools that jobs use (trackers, stores of data and models, schedulers, registries, chat), the
shapes those that issuers publish and scanners look for. Values are built when a test runs.
"""

# ruff: noqa: SIM905

from __future__ import annotations

import base64
import random
import string

from planted import BASE62, BASE64, HEX, UPPER, Kind, Maker

__all__ = ["MORE_KINDS"]

LETTERS = string.ascii_letters
URLSAFE = BASE62 + "-_"


def _of(alphabet: str, length: int, prefix: str = "", suffix: str = "") -> Maker:
    def make(source: random.Random) -> str:
        while True:
            text = "".join(source.choices(alphabet, k=length))
            if length < 8 or (any(c.isdigit() for c in text) and any(c.isalpha() for c in text)):
                return prefix + text + suffix

    return make


def _letters(length: int, prefix: str = "") -> Maker:
    return lambda source: prefix + "".join(source.choices(LETTERS, k=length))


def _phrase(source: random.Random) -> str:
    """What a person types: two words, a number and a sign."""
    words = ("granite", "willow", "monsoon", "lantern", "puffin", "saffron", "glacier", "thistle")
    return f"{source.choice(words)}{source.choice(words).title()}{source.randrange(100, 9999)}{source.choice('!?*+')}"


def _plain(source: random.Random) -> str:
    """A password of small letters and a number, as many users have."""
    return f"{source.choice(('tiger', 'summer', 'admin', 'cluster', 'research'))}{source.randrange(1000, 99999)}"


def _guid(source: random.Random) -> str:
    text = "".join(source.choices(HEX, k=32))
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _basic(source: random.Random) -> str:
    return base64.b64encode(f"svc-train:{_phrase(source)}".encode()).decode()


NAMES = """
AIM_ACCESS_TOKEN=40 AIRFLOW__CORE__FERNET_KEY=44 AIRTABLE_PERSONAL_TOKEN=40 ANYSCALE_CLI_TOKEN=48 APIFY_TOKEN=36
ASSEMBLYAI_KEY=32 AZUREML_SP_CLIENTSECRET=40 BASETEN_API_KEY=41 BEAM_AUTH_TOKEN=40 BITBUCKET_APP_PASSWORD=20
BUILDKITE_AGENT_ACCESS_TOKEN=42 CEREBRAS_API_KEY=48 CIRCLE_TOKEN=40 CODECOV_UPLOAD_TOKEN=36 CONDA_REPO_TOKEN=40
COREWEAVE_ACCESS_TOKEN=44 DEEPGRAM_SECRET=40 DEEPSEEK_API_KEY=32 DETERMINED_USER_TOKEN=64 DVC_STUDIO_TOKEN=54
ELASTIC_CLOUD_AUTH=40 EXA_API_KEY=36 FAL_KEY=69 FIREWORKS_KEY=48 FLYTE_CLIENT_SECRET=40 GCS_HMAC_SECRET=40
GEMINI_API_KEY=39 GITEA_ACCESS_TOKEN=40 GRADIENT_WORKSPACE_TOKEN=40 HEROKU_API_KEY=36 HONEYCOMB_WRITEKEY=32
INFLUXDB_V2_TOKEN=88 JFROG_ACCESS_TOKEN=64 JINA_AUTH_KEY=60 LAMBDA_CLOUD_APIKEY=50 LANGFUSE_SECRET=42
LITELLM_MASTER_KEY=35 MODAL_TOKEN_SECRET=40 MONGO_INITDB_ROOT_PASSWORD=20 MWAA_LOGIN_TOKEN=50 NATS_CREDS=58
NOTION_TOKEN=43 OBS_SECRET_ACCESS_KEY=40 OSS_ACCESSKEYSECRET=30 OVH_APPLICATION_SECRET=32 PAPERSPACE_APIKEY=30
POLYAXON_AUTH_TOKEN=40 PREDIBASE_API_TOKEN=40 RAY_AUTH_TOKEN=64 REDISCLI_AUTH=24 ROBOFLOW_PRIVATE_KEY=32
SAMBANOVA_APIKEY=36 SINGULARITY_DOCKER_PASSWORD=20 SLURMRESTD_JWT=80 SPOT_ADMIN_SECRET=32 STABILITY_KEY=48
SWANLAB_API_KEY=21 TENSORBOARD_DEV_CREDENTIAL=40 TFC_API_TOKEN=60 VERTEX_SA_KEY=44 VOLCENGINE_SECRETKEY=44
VOYAGE_API_KEY=46 WEAVIATE_APIKEY=40 XAI_API_KEY=80 ZENML_STORE_API_KEY=64
""".split()
PHRASES = """
BACKUP_ENC_PASSPHRASE BASTION_USER_PASS CEPH_USER_SECRET DASK_GATEWAY_PASSWORD DOMAIN_JOIN_PW ETCD_ROOT_PASSWORD
GITHUB_APP_KEY_PASSPHRASE HDFS_KEYTAB_PASSWORD IPMI_PASSWORD IRODS_PASSWORD JENKINS_USER_PWD KAFKA_SSL_KEY_PASSWORD
LUSTRE_ADMIN_PASS MATTERMOST_LOGIN_PASSWORD MLFLOW_DB_PASSWD OPENSTACK_OS_PASSWORD PROXY_PASSWORD RSYNC_PASSWORD
SAMBA_CRED SNMP_AUTH_PASS SVN_PASSWORD VPN_USER_PASSWORD
""".split()
OPTIONS = """
--swanlab-api-key --hub-auth-token --registry-password --registry-token --s3-secret --secret-access-key
--redis-password --ray-auth-token --proxy-pass --jwt-token --bearer-token --notebook-token --encryption-key
--clearml-secret --mlflow-token --x-api-key --pg-password --smtp-password --slack-webhook-token --modelscope-token
""".split()
SHAPES: tuple[tuple[str, Maker], ...] = (
    ("Airtable personal token", _of(BASE62, 14, "pat", "." + "0f" * 32)),
    ("Anthropic key", _of(URLSAFE, 93, "sk-ant-" + "api03-", "AA")),
    ("Atlassian token", _of(BASE62, 180, "ATATT" + "3xFfGF0", "=1A2B3C4D")),
    ("Bitbucket token", _of(BASE62, 180, "ATCTT" + "3xFfGN0", "=1A2B3C4D")),
    ("Buildkite token", _of(HEX, 40, "bkua" + "_")),
    ("Cerebras key", _of(BASE62, 48, "csk" + "-")),
    ("Cloudflare origin key", _of(HEX, 146, "v1.0-")),
    ("Clojars token", _of("abcdef0123456789", 60, "CLOJARS" + "_")),
    ("Databricks token", _of(HEX, 32, "dapi", "-2")),
    ("Doppler service token", _of(BASE62, 43, "dp.st." + "prd.")),
    ("Doppler personal token", _of(BASE62, 43, "dp.pt" + ".")),
    ("DigitalOcean OAuth", _of(HEX, 64, "doo" + "_v1_")),
    ("DigitalOcean refresh", _of(HEX, 64, "dor" + "_v1_")),
    ("Dynatrace token", _of(UPPER, 24, "dt0c" + "01.", "." + "A1B2C3D4" * 8)),
    ("EasyPost key", _of(BASE62, 54, "EZ" + "AK")),
    ("Fireworks key", _of(BASE62, 24, "fw" + "_")),
    ("Fly.io token", _of(BASE64, 200, "fm2" + "_")),
    ("Frame.io token", _of(URLSAFE, 64, "fio-" + "u-")),
    ("GitHub fine-grained token", _of(BASE62, 59, "github" + "_pat_" + "11AAAAAAA0aBcDeFgHiJkL_")),
    ("GitHub server token", _of(BASE62, 36, "ghs" + "_")),
    ("GitLab deploy token", _of(URLSAFE, 20, "gldt" + "-")),
    ("GitLab feed token", _of(URLSAFE, 20, "glft" + "-")),
    ("Google OAuth refresh", _of(URLSAFE, 60, "1//" + "0g")),
    ("Grafana cloud token", _of(BASE64, 80, "glc" + "_eyJ")),
    ("Grafana service account", _of(BASE62, 32, "glsa" + "_", "_1a2b3c4d")),
    ("Groq key", _of(BASE62, 52, "gsk" + "_")),
    ("HashiCorp batch token", _of(URLSAFE, 120, "hvb" + ".")),
    ("Heroku token", _of(URLSAFE, 58, "HRKU-" + "AA")),
    ("Infracost token", _of(BASE62, 32, "ico" + "-")),
    ("LangSmith key", _of(HEX, 32, "lsv2" + "_pt_", "_" + "1a2b3c4d5e")),
    ("Linear key", _of(BASE62, 40, "lin" + "_api_")),
    ("Mapbox secret", _of(BASE62, 60, "sk.ey" + "J1Ijoi", "." + "AbCdEfGhIjKlMnOpQrStU1")),
    ("New Relic user key", _of(UPPER, 27, "NR" + "AK-")),
    ("Notion token", _of(BASE62, 46, "ntn" + "_")),
    ("NVIDIA key", _of(URLSAFE, 64, "nvapi" + "-")),
    ("OpenRouter key", _of(HEX, 64, "sk-or-" + "v1-")),
    ("OpenAI service key", _of(URLSAFE, 100, "sk-svc" + "acct-")),
    ("Perplexity key", _of(BASE62, 48, "pplx" + "-")),
    ("PlanetScale password", _of(URLSAFE, 43, "pscale" + "_pw_")),
    ("PlanetScale token", _of(URLSAFE, 43, "pscale" + "_tkn_")),
    ("Postman key", _of(HEX, 24, "PMAK" + "-", "-" + "0a1b2c3d4e" * 3 + "5f6a")),
    ("Prefect key", _of(BASE62, 36, "pnu" + "_")),
    ("Pulumi token", _of(HEX, 40, "pul" + "-")),
    ("Replicate token", _of(BASE62, 37, "r8" + "_")),
    ("RunPod key", _of(UPPER, 40, "rpa" + "_")),
    ("Sentry org token", _of(BASE64, 120, "sntrys" + "_eyJpYXQiOj")),
    ("Shopify token", _of(HEX, 32, "shp" + "at_")),
    ("Slack app token", _of(BASE62, 64, "xapp-" + "1-A0B1C2D3E4F-1234567890123-")),
    ("Slack user token", _of(BASE62, 32, "xoxp-" + "123456789012-123456789012-1234567890123-")),
    ("Square token", _of(URLSAFE, 60, "EAAA" + "E")),
    ("Supabase token", _of(HEX, 40, "sbp" + "_")),
    ("Tailscale key", _of(BASE62, 32, "tskey-" + "auth-kAbCdEf1CNTRL-")),
    ("Telegram bot", _of(URLSAFE, 32, "6123456789:" + "AAF")),
    ("Together key", _of(HEX, 64)),
    ("Vault service token", _of(URLSAFE, 95, "hvs" + ".CAES")),
    ("Vercel blob token", _of(BASE62, 32, "vercel" + "_blob_rw_AbCd1234EfGh_")),
    ("xAI key", _of(BASE62, 80, "xai" + "-")),
    ("Yandex key", _of(URLSAFE, 38, "AQ" + "VN")),
)
CONTEXTS: tuple[tuple[str, Maker, str], ...] = (
    ("curl with a key in its header", _of(BASE62, 32), 'curl -H "X-Api-Key: {}" https://api.example.com/v1/runs'),
    ("curl with a private token", _of(URLSAFE, 20), 'curl --header "PRIVATE-TOKEN: {}" https://git.example.com/api'),
    ("curl with basic authentication", _basic, "curl -H 'Authorization: Basic {}' https://host/x"),
    ("wget with a password", _phrase, "wget --user=me --http-password={} https://data.example.com/set.tar"),
    ("a clone URL with a token", _of(BASE62, 40), "git clone https://oauth2:{}@git.example.com/team/repo.git"),
    (
        "a pip index with a password",
        _of(BASE62, 30),
        "pip install --index-url https://ci:{}@pypi.example.com/simple pkg",
    ),
    ("a postgres URL", _phrase, "postgresql+psycopg2://mlflow:{}@db:5432/mlflow"),
    ("an amqp URL", _of(BASE62, 24), "amqps://worker:{}@mq.example.com:5671/jobs"),
    ("a redis URL without a user", _of(BASE62, 32), "redis://:{}@cache:6379/0"),
    ("a mongodb+srv URL", _phrase, "mongodb+srv://trainer:{}@cluster0.abcde.mongodb.net/?retryWrites=true"),
    (
        "a signed URL of Azure",
        _of(BASE62, 43),
        "https://acc.blob.core.windows.net/c/f?sv=2022-11-02&sr=c&sig={}%3D&se=2026",
    ),
    ("a signed URL of S3", _of(HEX, 64), "https://b.s3.amazonaws.com/k?X-Amz-Expires=900&X-Amz-Signature={}"),
    (
        "a signed URL of Google",
        _of(HEX, 128),
        "https://storage.googleapis.com/b/k?X-Goog-Expires=9&X-Goog-Signature={}",
    ),
    ("an access token in a query", _of(BASE62, 40), "GET https://api.example.com/v1/me?access_token={}&x=1 401"),
    ("a key in a query", _of(BASE62, 39), "https://maps.example.com/api?key={}&q=x"),
    (
        "a connection string of Azure",
        _of(BASE64, 86, "", "=="),
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};x",
    ),
    ("a service bus string", _of(BASE64, 43, "", "="), "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey={}"),
    ("an ODBC string", _phrase, "Driver=ODBC;Server=db;Uid=sa;Pwd={};Encrypt=yes"),
    ("a .npmrc", _of(BASE62, 36), "//registry.example.com/:_authToken={}"),
    ("a .dockercfg", _basic, '"registry.example.com": {"auth": "{}"}'),
    ("an AWS credentials file", _of(BASE64, 40), "aws_secret_access_key = {}"),
    ("a boto call", _of(BASE64, 40), "boto3.client('s3', aws_secret_access_key='{}')"),
    ("a YAML value", _of(BASE62, 40), "  wandb_api_key: {}"),
    ("a TOML value", _of(BASE62, 36), 'api_token = "{}"'),
    ("a JSON value", _of(BASE62, 36), '{"accessToken": "{}", "n": 1}'),
    ("a JSON value in camel case", _phrase, '{"dbPassword":"{}"}'),
    ("an INI password", _phrase, "password={}"),
    ("a netrc entry", _of(HEX, 40), "machine api.wandb.ai login user password {}"),
    ("an export in a shell file", _of(BASE62, 40), 'export MY_SERVICE_TOKEN="{}"'),
    ("a docker variable", _of(BASE62, 37), "docker run -e HUB_READ_TOKEN={} image"),
    ("a docker login", _phrase, "docker login -u bot --password {} registry.example.com"),
    ("sshpass", _phrase, "sshpass -p {} ssh user@node1"),
    ("mysql", _phrase, "mysql -u root -p{} jobs"),
    ("psql in the environment", _phrase, "PGPASSWORD={} psql -h db"),
    ("redis-cli", _of(BASE62, 24), "redis-cli -h cache -a {} ping"),
    ("wandb login", _of(HEX, 40), "wandb login --relogin {}"),
    ("huggingface-cli login", _letters(34, "hf" + "_"), "huggingface-cli login --token {}"),
    ("aws configure set", _of(BASE64, 40), "aws configure set aws_secret_access_key {}"),
    ("openssl", _phrase, "openssl enc -aes-256-cbc -pass pass:{} -in a"),
    ("gpg", _phrase, "gpg --batch --passphrase {} -d x.gpg"),
    ("a message about a password", _phrase, "login failed for user 'svc' with password '{}'"),
    ("a message about a key", _of(BASE62, 40), "Error: the API key {} is not valid"),
    ("a message about a token", _of(BASE62, 40), "requests.HTTPError: 401 invalid token: {}"),
    ("a bearer in a log", _of(URLSAFE, 48), "DEBUG headers={'Authorization': 'Bearer {}'}"),
    ("a cookie in a log", _of(HEX, 48), "Set-Cookie: session={}; Path=/"),
    ("an argument of Python", _of(BASE62, 40), "wandb.login(key='{}')"),
    ("an argument of login", _letters(34, "hf" + "_"), "login(token='{}', add_to_git_credential=True)"),
    ("os.environ in a script", _of(BASE62, 40), "os.environ['COMET_EXPERIMENT_KEY_TOKEN'] = '{}'"),
    ("a GUID as a client secret", _guid, "AZURE_CLIENT_SECRET={}"),
    ("a simple password in the environment", _plain, "ADMIN_PASSWORD={}"),
)

MORE_KINDS: tuple[Kind, ...] = (
    *(
        Kind(f"variable {name}", _of(BASE62, int(length)), name, f"{name}={{}}")
        for name, length in (each.split("=") for each in NAMES)
    ),
    *(Kind(f"variable {name}", _phrase, name, f"{name}={{}}") for name in PHRASES),
    *(Kind(f"option {name}", _of(BASE62, 40), name, f"{name} {{}}") for name in OPTIONS),
    *(Kind(title, make, line="using {} now") for title, make in SHAPES),
    *(Kind(title, make, line=line) for title, make, line in CONTEXTS),
)
