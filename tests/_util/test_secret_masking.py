"""Text that looks like a secret is hidden, and other text stays."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tpunb._util.secret_masking import HIDDEN, mask, secrets_in


@pytest.mark.parametrize(
    "secret",
    [
        "AIzaSyA-1234567_abcdefghijklmnopqrstuv",
        "ya29.a0AfH6SMBx-y_z",
        "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
        "ghp_0123456789abcdefABCDEF0123456789abcd",
        "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuv",
        "sk-proj-abc-def-ghi_jkl",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "eyJhbGciOi.eyJzdWIiOi.SflKxw",
        "0123456789abcdef0123456789abcdef",
        "d41d8cd98f00b204e9800998ecf8427e",
        "123e4567-e89b-12d3-a456-426614174000",
        "glpat-aB3dE5fG7hI9",
        "npm_abcDEF1234567",
        "pypi-AgEIcHlwaS5vcmcC",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "--flag={}", "a {} b", "'{}'", "http://h/?x={}&y=1", '{{"k": "{}"}}', "x,{},y"]
)
def test_keys(secret: str, around: str) -> None:
    masked = mask(around.format(secret))
    assert secret not in masked
    # A long part of it must not show either.
    assert not any(secret[at : at + 12] in masked for at in range(len(secret) - 11))
    assert HIDDEN in masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("grpc://user:pass@host:8470", "grpc://***@host:8470"),
        ("grpc://user:p@ss:w@rd@host:8470", "grpc://***@host:8470"),
        ("http://proxy:3128", "http://proxy:3128"),
        ("user:pass@host", "***@host"),
        ("--a=1 token=abc --b=2", "--a=1 token=*** --b=2"),
        ("--xla_api_key=abc", "--xla_api_key=***"),
        ('{"password": "a b", "zone": "z"}', '{"password": ***, "zone": "z"}'),
        ("client_secret: abc", "client_secret: ***"),
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("--api-key=abc --x", "--api-key=*** --x"),
        ("--token abc --x", "--token *** --x"),
        ("--xla-auth abc", "--xla-auth ***"),
        ("--auth=abc", "--auth=***"),
        ("https://h/?a=1&key=abc&sig=def", "https://h/?a=1&key=***&sig=***"),
        ('{"tokens": ["a", "b"], "zone": "z"}', '{"tokens": ***'),
        ('{"credentials": {"id": "a"}}', '{"credentials": ***'),
        ("a -----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY----- b", "a *** b"),
        ("-----BEGIN PRIVATE KEY-----\nabc", "***"),
    ],
)
def test_names_and_users(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "--xla_force_host_platform_device_count=8 --xla_dump_to=/tmp/dump",
        "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
        "release-colab_20250902-060114_RC00",
        "v5litepod-16",
        "tpu-0.headless.default.svc.cluster.local,tpu-1.headless.default.svc.cluster.local",
        "10.0.0.2:8470,10.0.0.3:8470",
        "8431,8432,8433,8434,8435,8436,8437,8438",
        "/usr/lib/python3/dist-packages/libtpu/libtpu.so",
        "2,2,1",
        "true",
        "--xla_monkey=1 --keyboard us --compass=1 -k 5",
        "the signature of a step, and the token",
        "google.auth: RefreshError",
        '{"tpu_node_name": "my-tpu", "zone": "us-central1-b"}',
        'pip uninstall -y tensorflow && pip install "tpunb[tpu]"',
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert mask(text) == text


LETTERS = string.ascii_letters + string.digits
AROUND = st.text(alphabet=string.ascii_lowercase + " =,;:/\"'-_.&?{}[]", max_size=20)
PASSWORD = st.text(
    alphabet=string.printable.translate({ord(space): None for space in string.whitespace}),
    min_size=8,
    max_size=40,
)


@given(AROUND, st.text(alphabet=LETTERS, min_size=32, max_size=80), AROUND)
def test_long_words(before: str, secret: str, after: str) -> None:
    assert secret not in mask(f"{before}{secret}{after}")


@given(AROUND, st.text(alphabet=LETTERS, min_size=16, max_size=31), AROUND)
def test_mixed_words(before: str, secret: str, after: str) -> None:
    kinds = (str.islower, str.isupper, str.isdigit)
    assume(sum(any(map(kind, secret)) for kind in kinds) >= 2)
    assert secret not in mask(f"{before}{secret}{after}")


@given(PASSWORD)
@example("a@b:c/d@e")
@example("://@//@::")
def test_passwords_in_addresses(password: str) -> None:
    assume(password not in "grpc://***@host:8470")
    masked = mask(f"grpc://someone:{password}@host:8470")
    assert password not in masked
    assert masked.endswith("@host:8470")


@given(st.text(max_size=60), st.lists(st.text(min_size=6, max_size=30), max_size=4))
def test_known_secrets(text: str, secrets: list[str]) -> None:
    assume(not any(secret in HIDDEN * 3 for secret in secrets))
    masked = mask(text.join(["", *secrets, ""]), secrets)
    for secret in secrets:
        # Apart from the stars, the mask and its surroundings may spell a secret.
        assert secret not in masked or HIDDEN in secret or "*" in secret


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    once = mask(text)
    assert isinstance(once, str)


REPEATED = ("a:", "@", "token=", "a", "://", "-----BEGIN A-----", "--a-", '"a":"', "://a:")


@pytest.mark.parametrize("part", REPEATED)
def test_a_secret_after_a_long_text_is_masked(part: str) -> None:
    """A pattern with quadratic time would not finish."""
    text = part * (100_000 // len(part))
    address = f"{text} grpc://someone:hunter22@host:8470"
    assert "hunter22" not in mask(address)
    assert "hunter22" not in mask(
        f"{text} hunter22", secrets_in({"A": text, "B_TOKEN": "hunter22"})
    )
    assert text in secrets_in({"B_TOKEN": text})


def test_names_of_secrets() -> None:
    environment = {
        "GOOGLE_API_KEY": "value-1",
        "AWS_SECRET_ACCESS_KEY": "value-2",
        "HF_TOKEN": "value-3",
        "KAGGLE_KEY": "value-4",
        "DB_PASSWORD": "value-5",
        "COLAB_JUPYTER_TOKEN": "",
        "KEYBOARD": "value-6",
        "MONKEY": "value-7",
        "SHORT_TOKEN": "1",
        "PATH": "value-8",
        "PWD": "/home/value-9",
        "OLDPWD": "/home/value-10",
    }
    assert secrets_in(environment) == {f"value-{n}" for n in range(1, 6)}


def test_secrets_in_other_variables() -> None:
    environment = {
        "http_proxy": "http://me:value 1@x@proxy:3128",
        "SERVICE": '{"project": "my-project", "private_key": "value-\\"2"}',
        "QUOTED_TOKEN": "'value-3'",
    }
    assert secrets_in(environment) == {"value 1@x", 'value-\\"2', "value-3", "'value-3'"}


def test_secrets_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "short words")
    assert mask("with short words in it") == "with *** in it"
    assert mask("with short words in it", ()) == "with short words in it"
