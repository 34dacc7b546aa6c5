"""The ordinary forms of secrets are masked wherever they stand; their lookalikes stay readable."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from detslurm.config import ExperimentConfig, load_experiment
from detslurm.config.masking import secrets_of, shareable
from detslurm.config.secret_names import MASK
from detslurm.config.secret_texts import masked_code, masked_text
from detslurm.config.secret_values import (
    masked_sample,
    masked_values,
    restored_sample,
    shareable_sample,
)

HUSH = "Gq7hushX"  # short, and of no service's form: only where it stands makes it a secret
ISSUED = "Qw3rTy9hushUiOpAsDfGh7"  # as long as what services issue

KEYS: list[dict[str, Any]] = [
    {"password": HUSH},
    {"db_password": HUSH},
    {"dbPassword": HUSH},
    {"passwd": HUSH},
    {"passphrase": HUSH},
    {"pwd": HUSH},
    {"api_key": HUSH},
    {"apiKey": HUSH},
    {"api-key": HUSH},
    {"openai_key": HUSH},
    {"aws_secret_access_key": HUSH},
    {"aws_access_key_id": HUSH},
    {"private_key": HUSH},
    {"client_secret": HUSH},
    {"token": HUSH},
    {"hf_token": HUSH},
    {"access_tokens": [HUSH, HUSH]},
    {"auth": HUSH},
    {"credentials": {"user": "me", "password": HUSH}},
    {"logger": {"wandb": {"api_key": HUSH}}},
    {"credentials": {"aws": HUSH, "more": [HUSH, {"pin": HUSH}]}},
    {"secrets": {"wandb": {"mine": HUSH}}},
    {"servers": [{"host": "a", "password": HUSH}]},
    {"slack_webhook": f"https://example.org/{HUSH}"},
    {"cookie": f"session={HUSH}"},
    {"connection_string": f"Server=tcp:db;Database=x;User Id=me;Password={HUSH};"},
    {"storage": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={HUSH}==;"},
    {"dsn": f"host=db user=me password={HUSH} dbname=x"},
    {"database_url": f"postgresql://me:{HUSH}@db.example.org/x"},
    {"args": ["--api-key", HUSH]},
]
"""Below `data`, and as hyperparameters."""

COMMANDS: list[str | list[str]] = [
    f"python train.py --api-key {HUSH}",
    f"python train.py --api-key={HUSH}",
    f"python train.py --wandb-api-key '{HUSH} {HUSH}' --lr 1",
    f"python train.py --token {HUSH}",
    f"python train.py --password {HUSH}",
    f"python train.py -password {HUSH}",
    f"python train.py wandb.api_key={HUSH}",
    f"python train.py ++logger.token={HUSH}",
    ["python", "train.py", "--api-key", HUSH],
    ["python", "train.py", "--password", f"{HUSH} {HUSH}"],
    ["wandb", "login", HUSH],
    f"wandb login {HUSH}",
    f"wandb login --relogin {HUSH} && python train.py",
    f"wandb login --host https://wandb.example.org {HUSH}",
    f"huggingface-cli login --token {HUSH}",
    f"docker login -u me -p {HUSH} registry.example.org",
    f"echo {HUSH} | docker login --password-stdin",
    f"sshpass -p {HUSH} scp a b",
    f"mysql -u me -p{HUSH} x",
    f"curl -u me:{HUSH} https://example.org",
    f'curl -H "Authorization: Bearer {HUSH}" https://example.org',
    f"curl -H 'authorization: Basic {HUSH}' https://example.org",
    f"curl -H 'X-Api-Key: {HUSH}' https://example.org",
    f"aws configure set aws_secret_access_key {HUSH}",
    f"WANDB_API_KEY={HUSH} python train.py",
    f"export DB_PASS={HUSH}",
    f"export PGPASS={HUSH}",
    f"export STRIPE_KEY={HUSH}",
    f"export SLACK_WEBHOOK_URL=https://example.org/{HUSH}",
    f"""python train.py --config '{{"password": "{HUSH}"}}'""",
    f"git clone https://{HUSH}@github.com/a/b",
    f"git clone https://me:{HUSH}@github.com/a/b",
    f"wget 'https://example.org/data?api_key={HUSH}&part=1'",
    f"wget 'https://example.org/data?X-Amz-Signature={HUSH}&X-Amz-Expires=9'",
    f"wget 'https://a.blob.core.windows.net/b?sv=1&sig={HUSH}'",
    f"curl https://hooks.slack.com/services/T0/B0/{HUSH}",
    f"python train.py s3://a hf_{ISSUED}",
    f"python train.py sk-{ISSUED}",
    f"python train.py ghp_{ISSUED}",
    f"python train.py eyJ{ISSUED}.eyJ{ISSUED}.{ISSUED}",
]
"""An entrypoint, or a line of `slurm.setup`."""

VARIABLES = [
    f"{name}={HUSH}"
    for name in ("DB_PASS", "PGPASS", "STRIPE_KEY", "DATABASE_URL", "SLACK_WEBHOOK_URL", "ANYTHING")
]

CODE: list[tuple[str, bool]] = [
    (f"+-----BEGIN PRIVATE KEY-----\n+{HUSH}\n+-----END PRIVATE KEY-----\n", False),
    (f'API_KEY = "{HUSH}"', True),
    (f"password: str = '{HUSH}'", True),
    (f'os.environ["WANDB_API_KEY"] = "{HUSH}"', True),
    (f'os.environ.setdefault("HF_TOKEN", "{HUSH}")', True),
    (f'connect(host="db", password="{HUSH}")', True),
    (f'wandb.login(key="{HUSH}")', True),
    (f'login("{HUSH}")', True),
    (f'parser.add_argument("--api-key", type=str, default="{HUSH}")', True),
    (f"{{'token': '{HUSH}'}}", True),
    (f'"source": ["api_key = \\"{HUSH}\\"\\n", "wandb.login(key=\\"{HUSH}\\")"]', True),
    (f"-----BEGIN RSA PRIVATE KEY-----\n{HUSH}\n-----END RSA PRIVATE KEY-----", True),
    (f"data:\n  password: {HUSH}\n", False),
    (f"export WANDB_API_KEY={HUSH}\nwandb login {HUSH}\n", False),
]

OPEN: list[dict[str, Any]] = [
    {"tokenizer": "gpt2-large", "tokenizer_path": "/data/t.json"},
    {"num_tokens": 100_000, "max_tokens": "100k", "max_new_tokens": 64, "tokens": "bpe"},
    {"pad_token": "[PAD]", "eos_token": "</s>", "mask_token": "mask", "token_dropout": 0.1},
    {"eos_token_id": 2, "token_dim": 8, "image_token": "img", "tokens_per_batch": "4k"},
    {"author": "me", "authors": "a and b", "authority": "who"},
    {"key_frames": "1,2", "sort_key": "length", "image_key": "pixels", "keys": "a", "key": "b"},
    {"lr": 0.1, "learning_rate": "1e-3", "bypass": "x", "forward_pass": "two", "compass": "n"},
    {"password_file": "/etc/x", "secret_dim": "9", "use_auth_token": True, "token": None},
    {"prompt": "Tokens: how many?", "signature_length": "4", "url": "https://a.org/b?page=2&k=3"},
    {"args": ["--tokenizer", "gpt2", "--max-tokens", "9", "--author", "me", "--key", "length"]},
]
COMMANDS_OPEN = [
    "python train.py --tokenizer gpt2 --num-tokens 9 --max_tokens=9 --author=me --lr=0.1",
    "torchrun --nproc-per-node=2 train.py --data=s3://bucket/a@v1 --rdzv-endpoint=a:1",
    "python train.py model.pad_token=x ++trainer.key_frames=3 --monitor-key val/loss",
    "wandb login && python train.py --basic usage --login me",
    "git clone git@github.com:a/b.git; pip install a@https://example.org:8080/a@1.whl",
    "scp -p a b | docker run -p 80:80 image",
]
CODE_OPEN = [
    'tokenizer = AutoTokenizer.from_pretrained("gpt2")',
    'token = tokens[i]; password = os.environ["DB_PASSWORD"]; if token == "x": pass',
    'columns = ["token", "label"]; max_tokens = "9"; sort(key="length")',
    'api_key = os.getenv("API_KEY")',
]


def _config(**sections: Any) -> Any:
    source = {"entrypoint": "a", "searcher": {"name": "single", "metric": "m"}, **sections}
    return load_experiment(source).config


def test_sections_of_secrets() -> None:
    """Of sections without effect nothing is shown; a bundle's reader takes their masked form."""
    config = _config(
        environment={"registry_auth": {"username": "me", "identitytoken": HUSH}},
        integrations={"pachyderm": {"dataset": {"token": f"{HUSH}-2"}}},
    )
    plain, shown = config.to_dict(), config.masked()
    assert HUSH not in json.dumps(shown)
    assert {HUSH, f"{HUSH}-2"} <= {*secrets_of(plain, shown)}  # logs are searched for these
    assert ExperimentConfig.from_dict(shown).masked() == shown


@pytest.mark.parametrize("data", KEYS, ids=json.dumps)
def test_keys(data: dict[str, Any]) -> None:
    """Of `data` and `hyperparameters`, in configurations, checkpoints and a trial's records."""
    config = _config(data=data, hyperparameters=data)
    plain, shown = config.to_dict(), config.masked()
    assert HUSH in json.dumps(plain["data"]) and HUSH in json.dumps(plain["hyperparameters"])
    assert HUSH not in json.dumps([shown, shareable(plain, ("data", "hyperparameters"))])
    assert any(HUSH in secret for secret in secrets_of(plain, shown))
    record = masked_sample(data, plain["hyperparameters"])
    assert HUSH not in json.dumps([record, masked_values(data)])
    assert restored_sample(record, plain["hyperparameters"]) == data


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands(command: str | list[str]) -> None:
    """Entrypoints, lines of `slurm.setup`, options of containers and of sbatch."""
    line = command if isinstance(command, str) else shlex.join(command)
    config = _config(
        entrypoint=command,
        data={"command": command},
        slurm={"setup": [line], "container_prefix": ["a", "exec", "--env", f"X_API_KEY={HUSH}"]},
    )
    assert not any(s in json.dumps(config.masked()) for s in (HUSH, ISSUED))


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables(variable: str) -> None:
    """Of environment variables the names are enough, whatever the values are."""
    shown = _config(environment={"environment_variables": [variable]}).masked()
    assert HUSH not in json.dumps(shown)
    assert shown["environment"]["environment_variables"]["cpu"] == [
        f"{variable.partition('=')[0]}=********"
    ]


@pytest.mark.parametrize(("code", "program"), CODE)
def test_code(code: str, program: bool) -> None:
    """What is written into a file of the code is masked where the code is listed."""
    assert HUSH not in masked_code(code, program=program)


def test_a_hyperparameter_that_is_drawn_is_a_result() -> None:
    """Only constants are masked in records, so that a trial can be made again of them."""
    space = {"token": {"type": "categorical", "vals": ["bpe", "char"]}}
    assert masked_sample({"token": "bpe"}, space) == {"token": "bpe"}
    shared = shareable_sample({"token": "bpe", "password": HUSH, "lr": 0.1}, space)
    assert shared == {"token": "bpe", "password": MASK, "lr": 0.1}


@pytest.mark.parametrize("data", OPEN, ids=json.dumps)
def test_lookalikes_of_keys(data: dict[str, Any]) -> None:
    """What language models and loggers are about stays readable."""
    shown = _config(data=data, hyperparameters=data).masked()
    assert shown["data"] == data and masked_values(data) == data
    assert "****" not in json.dumps(shown)


@pytest.mark.parametrize("command", COMMANDS_OPEN)
def test_lookalikes_in_commands(command: str) -> None:
    """Options and addresses that only look like secrets stay readable."""
    config = _config(entrypoint=command, slurm={"setup": [command]})
    assert config.masked() == config.to_dict()
    assert _config(entrypoint=command.split()).masked()["entrypoint"] == command.split()


@pytest.mark.parametrize("code", CODE_OPEN)
def test_lookalikes_in_code(code: str) -> None:
    """Names without a literal value, and literals without a secret's name, stay readable."""
    assert masked_code(code, program=True) == code


@pytest.mark.parametrize("unit", ["a", "a.", "hf_", 'a"', "a: b"])
def test_long_lines_take_no_minutes(unit: str) -> None:
    """Data in the code has lines of any length; the time grows as the line does, not faster."""
    line = unit * (50_000 // len(unit))
    assert masked_text(line) == line == masked_code(line, program=True)
