"""Test that credentials are masked in messages, log records, tracebacks and JSON."""

import base64
import io
import json
import logging
import subprocess
import sys
from html import escape
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe import credential_patterns as patterns
from gumshoe import redaction
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.inference.policy import PolicyError
from gumshoe.redaction import MASK, find_credentials, redact, redact_json, register_secret
from gumshoe.terminal import err

SECRET = "S3cr3tPw"
URLS = [
    f"http://user:{SECRET}@host:8000/v1",
    f"https://{SECRET}@github.com/owner/name",
    f"redis://:{SECRET}@cache/0",
    f"s3://AK:{SECRET}@bucket/key",
    f"imaps://ann:{SECRET}@mail.example.com/INBOX",
    f"socks5h://user:{SECRET}@proxy:1080",
    f"vllm:http://u:{SECRET}@a:8000,http://u:{SECRET}@b:8000#adapter",
    f"chat:gpt@https://u:{SECRET}@host/v1",
    f"http://user:{SECRET}/with/slash@host/path",
    f"http://user:p@{SECRET}@host/path",
    f"HTTP://USER:{SECRET}@HOST",
    f"http:\\/\\/user:{SECRET}@host",
    f"next=http%3A%2F%2Fuser%3A{SECRET}%40host%2F&a=1",
    f"https://b.s3/k?X-Amz-Credential={SECRET}%2F1&X-Amz-Signature={SECRET}&X-Amz-Date=1",
    f"https://storage/k?X-Goog-Signature={SECRET}&x=1",
    f"https://a.blob/x?sv=1&sig={SECRET}%3D",
    f"/invoke?key={SECRET}",
    f"/mcp?a=1&access_token={SECRET}#x",
    f"https://hooks.slack.com/services/T1/B1/{SECRET}",
    f"https://discord.com/api/webhooks/1/{SECRET}",
]
HEADERS = [
    f"Authorization: Bearer {SECRET}",
    f"authorization=Basic {SECRET}==",
    f"Proxy-Authorization: {SECRET}",
    f"Authorization: AWS4-HMAC-SHA256 Credential=AKI/{SECRET}, SignedHeaders=host, Signature={SECRET}",
    f'Authorization: Digest username="a", response={SECRET}',
    f"(b'authorization', b'Bearer {SECRET}')",
    f"{{'Authorization': 'Bearer {SECRET}', 'Accept': '*/*'}}",
    f"Cookie: theme=dark; session={SECRET}",
    f"{{'set-cookie': 'sid={SECRET}; Path=/'}}",
    f"X-Api-Key: {SECRET}",
    f'{{"x-amz-security-token": "{SECRET}"}}',
    f"curl -H 'Authorization: Bearer {SECRET}' http://host",
    f"the header Bearer {SECRET}abcdefgh was refused",
]
FIELDS = [
    f"password={SECRET}",
    f"{{'password': '{SECRET} with spaces {SECRET}'}}",
    f'{{"api_key": "{SECRET}"}}',
    f"AsyncOpenAI(api_key='{SECRET}')",
    f"HF_TOKEN={SECRET}",
    f"GUMSHOE_IMAP_PASSWORD_ANN_EXAMPLE_COM={SECRET}",
    f"aws_secret_access_key = {SECRET}",
    f'{{"name": "AWS_SECRET_ACCESS_KEY", "value": "{SECRET}"}}',
    f"users:\n- user:\n    token: {SECRET}\n",
    f"    client-key-data: {SECRET}==",
    f"OTEL_EXPORTER_OTLP_HEADERS=authorization={SECRET}",
    f"- name: HF_TOKEN\n  value: {SECRET}",
    f"env:\n- name: 'HF_TOKEN'\n  value: '{SECRET}'\n",
    f"password: |\n  {SECRET}\n",
    json.dumps(json.dumps({"password": f'{SECRET}"{SECRET}', "user": "ann"})),
    json.dumps(json.dumps(json.dumps({"Authorization": f"Bearer {SECRET}"}))),
    json.dumps(f"first line\npassword={SECRET}\nlast"),
    f"{{'password': 'ab\\'{SECRET}'}}",
    f'{{"password": "ab\\"{SECRET}"}}',
    f'{{"clientSecret":"{SECRET}", "id": 1}}',
    f"{{'accessToken': '{SECRET}'}}",
    f"secretAccessKey: {SECRET}",
    f"AccountKey={SECRET}==;EndpointSuffix=example",
    f"PGPASSWORD={SECRET} psql",
    f"vllm serve --api-key {SECRET}",
    f"['vllm', '--api-key', '{SECRET}']",
    f"cannot parse //user:{SECRET}@host/x",
]
FORMS = [
    f"gum_{SECRET}AAAAAAAAAAAAAA",
    f"hf_{SECRET}AAAAAAAAAAAAAA",
    f"sk-proj-{SECRET}AAAAAAAAAAAAAA",
    "AKIAS3CR3TPWAAAAAAAA",
    f"ghp_{SECRET}AAAAAAAAAAAAAAAAAA",
    f"xoxb-1-{SECRET}AAAA",
    f"eyJhbGciOiJI.eyJ{SECRET}.{SECRET}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("text", [*URLS, *HEADERS, *FIELDS, *FORMS])
def test_a_credential_is_masked(text: str) -> None:
    for whole in (text, f"cannot connect to {text}; check it", f"{text}, {text}", f"'{text}'", f"({text})"):
        masked = redact(whole)
        assert SECRET.lower() not in masked.lower()
        assert MASK in masked
        assert redact(masked) == masked, "masking twice changes nothing"


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8000/v1 does not answer",
        "imap://ann@mail.example.com/INBOX of ann",
        "s3://bucket/a?b@c",
        "http://a:8000,http://b:8000/v1@x",
        "https://medium.com/@user/post",
        "vllm:http://127.0.0.1:8000#base",
        "chat:gpt@https://host/v1",
        "hf:owner/data@train and s3://bucket/a@b",
        "ann@example.com, <1@example.com>",
        "max_tokens: 100, token_ids=[1], prompt_tokens=5, tokens: 7, tokenizer: x",
        "its id of token 'x' is 3",
        "pad_token='[PAD]', eos_token: '<|end|>', next_token = 'word'",
        "Send a key or a token: Authorization: Bearer ...",
        "Authorization: Bearer $KEY",
        "OPENAI_API_KEY is not set; set it",
        "HF_TOKEN, OPENAI_API_KEY: both",
        "Secret gumshoe-s3: not found",
        "?a=1&b=2",
        "monkey=1",
        "send --token or --api-key with each request; --eos-token 151643",
        "secretKey: VLLM_API_KEY, secretKeyRef: {name: s3, key: AWS_SECRET_ACCESS_KEY}",
        "a//b@c and // Author: Ann <ann@example.com>",
    ],
)
def test_text_without_credentials_stays(text: str) -> None:
    assert redact(text) == text


def test_what_is_not_secret_in_a_url_stays() -> None:
    assert (
        redact(f"http://u:{SECRET}@host:1/p?a=1&sig={SECRET}&b=2#c") == f"http://{MASK}@host:1/p?a=1&sig={MASK}&b=2#c"
    )


def test_values_of_secret_variables_are_masked_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG")
    monkeypatch.setenv("GUMSHOE_WEBHOOK", "https://chat.example/hook/9f8e7d")
    monkeypatch.setenv("GUMSHOE_EXAMPLE", "an ordinary value")
    said = redact("bad key wJalrXUtnFEMI/K7MDENG for https://chat.example/hook/9f8e7d, an ordinary value")
    assert said == f"bad key {MASK} for {MASK}, an ordinary value"
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", "/var/run/secrets/token")
    assert redact("/var/run/secrets/token is missing") == "/var/run/secrets/token is missing", "not a secret itself"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/secrets/google.json")
    assert redact("/var/run/secrets/google.json is missing") == "/var/run/secrets/google.json is missing", "a path"
    monkeypatch.setenv("SLACK_WEBHOOK_URL", "https://chat.example/other/1a2b3c")
    assert redact("https://chat.example/other/1a2b3c failed") == f"{MASK} failed"
    monkeypatch.setenv("API_TOKEN", "none")
    assert redact("there is none") == "there is none", "short values are words"


def test_parts_of_a_url_that_a_library_quotes_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    said = redact("http://u:pass/word1@h does not answer: Invalid port: 'word1' of 'pass/word1'")
    assert said == f"http://{MASK}@h does not answer: Invalid port: 'word1' of '{MASK}'", "5 letters may be any word"
    said = redact("http://u:pass/longer@h does not answer: Invalid port: 'longer'")
    assert said == f"http://{MASK}@h does not answer: Invalid port: '{MASK}'"
    said = redact("s3://u:secret-part@b: invalid bucket 'u:secret-part@b'")
    assert "secret-part" not in said
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:proxy-password@proxy:3128")
    assert redact("407 from proxy for ann with proxy-password") == f"407 from proxy for ann with {MASK}"


def test_a_registered_secret_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumshoe.redaction._registered", set[str]())
    for _ in range(2):  # the second time, the text is known to have no credentials
        assert redact("login with opensesame-17 failed") == "login with opensesame-17 failed"
    register_secret("opensesame-17")
    assert redact("login with opensesame-17 failed") == f"login with {MASK} failed"


def test_json_keeps_its_form() -> None:
    given: dict[str, Any] = {
        "servers": [f"http://u:{SECRET}@h:1"],
        "password": SECRET,
        "nested": {"api_key": SECRET, "max_tokens": 5, "is_open": True, "none": None, "token": ""},
        "env": [{"name": "HF_TOKEN", "value": SECRET}, {"name": "MODE", "value": "fast"}],
        "command": ["vllm", "--api-key", SECRET, "--port", "1"],
        "cookies": {"session": [SECRET]},
        "secret": {"secretName": "gumshoe-s3", "secretKey": "VLLM_API_KEY"},
    }
    assert redact_json(given) == {
        "servers": [f"http://{MASK}@h:1"],
        "password": MASK,
        "nested": {"api_key": MASK, "max_tokens": 5, "is_open": True, "none": None, "token": ""},
        "env": [{"name": "HF_TOKEN", "value": MASK}, {"name": "MODE", "value": "fast"}],
        "command": ["vllm", "--api-key", MASK, "--port", "1"],
        "cookies": {"session": [MASK]},
        "secret": {"secretName": "gumshoe-s3", "secretKey": "VLLM_API_KEY"},
    }


def test_places_of_credentials_are_found_by_form_and_by_name() -> None:
    given: dict[str, Any] = {
        "servers": ["http://h:1", f"http://u:{SECRET}@h:1"],
        "reward": {
            "name": "my:Reward",
            "settings": {"api_key": "abc", "max_tokens": 5, "password": "", "token_ids": [1]},
        },
        "extraEnv": [{"name": "HF_TOKEN", "value": "abc"}, {"name": "MODE", "value": "fast"}],
        "caBundle": {"secret": "company-ca", "key": "ca.crt"},
        "storage": {"existingSecret": "gumshoe-s3", "client_secret": "***"},
    }
    assert find_credentials(given) == ["servers.1", "reward.settings.api_key", "extraEnv.0.value"]


def test_errors_hold_no_credentials() -> None:
    error = UsageError("x.y", f"http://u:{SECRET}@host failed")
    failed = PolicyError("x.y", f"http://u:{SECRET}@host failed", f"Authorization: Bearer {SECRET}")
    for each in (error, failed):
        assert SECRET not in repr([each, each.args, vars(each), each.message_with_code])


def test_log_records_are_masked_with_any_handler() -> None:
    written = io.StringIO()
    handler, log = logging.StreamHandler(written), logging.getLogger("other.package")
    log.addHandler(handler)
    try:
        log.warning("request to %s failed", httpx.URL(f"http://u:{SECRET}@host"))
        try:
            raise httpx.ConnectError(f"http://u:{SECRET}@host does not answer")
        except httpx.ConnectError:
            log.exception("key %s", {"Authorization": f"Bearer {SECRET}"})
    finally:
        log.removeHandler(handler)
    assert "ConnectError" in written.getvalue()
    assert SECRET not in written.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        "raise GumshoeError('x.y', URL)",
        "raise OSError(URL)",
        "import threading; t = threading.Thread(target=lambda: int(URL)); t.start(); t.join()",
        "from gumshoe import cli; cli.app = lambda *a, **o: int(URL); cli.main(['--help'])",
        "from gumshoe.terminal import err; err.print(f'waiting for {URL}')",
        "import logging; logging.basicConfig(level=10); logging.getLogger().info(URL)",
    ],
)
def test_a_process_writes_no_credentials(body: str) -> None:
    parts = f"from gumshoe.errors import GumshoeError; URL = 'http://u:' + 'S3cr' + '3tPw' + '@host'; {body}"
    ended = subprocess.run([sys.executable, "-c", parts], capture_output=True, text=True, check=False)
    assert f"http://{MASK}@host" in ended.stderr
    assert SECRET not in ended.stderr + ended.stdout


def test_the_command_line_masks_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    from gumshoe import cli

    for words in (["doctor", f"--no-such=http://u:{SECRET}@host"], ["--proxy", f"ftp://u:{SECRET}@host", "doctor"]):
        with pytest.raises(SystemExit):
            cli.main(words)
        written = capsys.readouterr()
        assert SECRET not in written.out + written.err


def test_messages_in_a_terminal_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    err.print(f"[dim]using http://u:{SECRET}@host[/]", soft_wrap=True)
    assert capsys.readouterr().err == f"using http://{MASK}@host\n"


def test_clients_do_not_log_each_request() -> None:
    for name in ("httpx", "httpx2", "urllib3", "openai", "botocore"):
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)


@pytest.mark.parametrize(
    "password", ['p@ss/w0rd!"x', "a<b>&'c'\"d", "plain-passw0rd", "päss w0rd&more", "back\\slash-1"]
)
def test_values_of_secrets_are_masked_in_all_spellings(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", password)
    coded = base64.b64encode(password.encode()).decode()
    for spelled in (password, quote(password), quote(password, safe=""), json.dumps({"a": password}), coded):
        assert redact(f"rejected: {spelled}, again").replace('{"a": "***"}', MASK).startswith(f"rejected: {MASK}")
    in_html = (escape(password), escape(password, quote=False))
    jinja = in_html[0].replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    for spelled in (password, quote(password, safe=""), json.dumps(password)[1:-1], coded, *in_html, jinja):
        assert spelled not in redact(f"rejected: {spelled}, again")


_HOSTILE = [
    *("a", "a-", "a.b", "http://a:", "http://", "a=", "password ", "?key=", "%3a%2f%2f", "\n", " \n", "cookie: "),
    *(
        "token:",
        "secret_key:",
        "eyJ-",
        "eyJaaaaaa-",
        "\\",
        "\\n",
        '\\"',
        "--token ",
        "//a:",
        "authorization: a ",
        "token: |\n x\n",
    ),
]


@pytest.mark.parametrize("part", _HOSTILE)
def test_a_long_text_is_masked_to_its_end(part: str) -> None:
    """A form whose work grows with the square of the length would take hours."""
    assert redact(f"{part * 100_000} http://u:{SECRET}@host").endswith(f" http://{MASK}@host")


_PIECES = "password token Bearer Basic --api-key api_key -----BEGIN http www user@host . <> + - x 7 é"


@given(st.lists(st.sampled_from(_PIECES.split(" "))))
def test_an_id_needs_no_search_for_named_credentials(words: list[str]) -> None:
    """Log lines have many ids, and most expressions need a separator."""
    text = "".join(words)
    assert patterns.NO_SEPARATORS.fullmatch(text)
    assert redaction._mask_named(text) == text


def test_an_error_class_is_still_pickled() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(PolicyError("x.y", "public", "server")))
    assert (error.code, error.message) == ("x.y", "public (server)")
    assert json.dumps(GumshoeError("x.y", "message").message) == '"message"'


def test_secrets_are_looked_up_again_only_if_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[int] = []
    find = redaction._find_secret_values

    def find_and_count() -> Any:
        lookups.append(1)
        return find()

    monkeypatch.setattr(redaction, "_registered", set())
    monkeypatch.setattr(redaction, "_find_secret_values", find_and_count)
    first, second = "quiet-harbour-1", "green-lantern-2"
    for _ in range(3):
        assert redact(f"{first} {second}") == f"{first} {second}"
    monkeypatch.setenv("MY_API_KEY", first)
    for _ in range(3):
        assert redact(f"{first} {second}") == f"*** {second}"
    redaction.register_secret(second)
    assert redact(f"{first} {second}") == "*** ***"
    monkeypatch.setenv("MY_API_KEY", "another-value-3")
    assert redact(f"{first} {second} another-value-3") == f"{first} *** ***"
    assert len(lookups) <= 4
