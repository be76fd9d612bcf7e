"""Test tokens (JWT) of an identity provider: only valid ones give access, and only to the addresses that they name."""

import asyncio
import base64
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.errors import check_error
from tests.http_server import run_server
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import (
    ANN,
    BOB,
    DAY,
    EVE,
    SECRET,
    ServerFiles,
    add_key,
    code_of,
    question_body,
)
from tests.serving.identity_provider import (
    AUDIENCE,
    ISSUER,
    JwksHandler,
    Provider,
    authenticate,
    embed_key,
    forge_token,
    jwt_claims,
    make_access,
    publish,
    sign,
    sign_with_public_key,
)
from tests.serving.in_process import make_settings, serve_in_thread
from tests.waiting import Clock

if TYPE_CHECKING:
    from gumshoe.serving.access import Access

Ask = Callable[..., httpx.Response]


def test_a_token_can_read_the_inboxes_in_its_claim(ask: Ask, provider: tuple[Provider, str]) -> None:
    made, _ = provider
    for token in (
        made.token(),
        made.token(made.ec, "ES256", "ec"),
        made.token(aud=["other", AUDIENCE]),
        made.token(made.keys["verify"], kid="verify"),
        made.token(exp=int(time.time()) + 80_000),
        sign({"kid": "rsa"}, {**jwt_claims(), "email": ANN.upper()}, made.rsa),
    ):
        assert ask(token).status_code == 200
        assert ask(token, inbox_address=EVE).status_code == 403
    assert ask(made.token(email=[ANN, BOB]), inbox_address=BOB).status_code == 200


def test_a_key_without_an_algorithm_verifies_all_of_its_kind(provider: tuple[Provider, str]) -> None:
    from gumshoe.serving.access import UnauthenticatedError

    made, address = provider
    names = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
    opened = make_access(f"{address}/keys", algorithms=(*names, "ES256"))
    tokens = [made.token(made.keys["verify"], each, "verify") for each in names]
    others = [made.token(algorithm="RS384"), made.token(algorithm="PS256"), made.token(made.other, kid="ec")]

    async def authenticate_all() -> None:
        for token in (*tokens, made.token(made.ec, "ES256", "ec")):
            assert (await opened.authenticate(token)).name == "ann"
        for token in (*others, made.token(made.other, "PS256", "verify")):
            with pytest.raises(UnauthenticatedError) as raised:
                await opened.authenticate(token)
            assert raised.value.code == "serving.invalid-token"

    asyncio.run(authenticate_all())
    strict = make_access(f"{address}/keys")
    with pytest.raises(UnauthenticatedError) as raised:
        asyncio.run(strict.authenticate(tokens[1]))
    assert raised.value.code == "serving.unsupported-algorithm"


EVE_SPELLINGS = (
    f"'{EVE}'",
    f"'{EVE}",
    f'"{EVE}"',
    f"<{EVE}>",
    f" {EVE}",
    f"{EVE} ",
    f"\n{EVE}",
    f"{EVE}\n",
    f"\u00a0{EVE}",
    f"\t{EVE}",
    f"eve(x)@{EVE.partition('@')[2]}",
    f'"eve"@{EVE.partition("@")[2]}',
    f"Eve <{EVE}>",
    f"{ANN},{EVE}",
    EVE.replace("@", "\uff20"),
    EVE.replace("v", "\uff56"),
    EVE.replace("o", "\uff4f", 1),
    EVE.replace("v", "v\u200b"),
    EVE.replace("v", "v\u00ad"),
    f"\u202e{EVE}",
    f"\ufeff{EVE}",
    f"{EVE}\0",
    f"{EVE}.",
)


@pytest.mark.parametrize("email", EVE_SPELLINGS, ids=ascii)
def test_a_claim_that_only_resembles_an_address_reads_nothing(
    email: str, ask: Ask, provider: tuple[Provider, str]
) -> None:
    made, _ = provider
    for token in (made.token(email=email), made.token(email=[email])):
        for inbox in (EVE, email):
            response = ask(token, inbox_address=inbox, question="What is in 99?", steps=True)
            assert response.status_code in (403, 422), response.text
            assert SECRET not in response.text


@pytest.mark.parametrize("inbox", EVE_SPELLINGS, ids=ascii)
def test_an_inbox_that_only_resembles_an_address_is_refused(
    inbox: str, ask: Ask, provider: tuple[Provider, str]
) -> None:
    response = ask(provider[0].token(email=EVE), inbox_address=inbox)
    assert response.status_code == 422
    assert code_of(response) in ("scenarios.invalid-inbox", "serving.invalid-request"), "NUL is not valid in any text"
    assert ask(provider[0].token(email=EVE), inbox_address=EVE.capitalize()).status_code == 200


def test_an_internationalized_domain_is_the_same_in_index_key_token_and_request(
    provider: tuple[Provider, str], model: FakeVLLM, tmp_path: Path
) -> None:
    from tests.inference.fake_vllm import write_tokenizer
    from tests.mail.mailbox import make_index, record
    from tests.serving.in_process import model_settings

    unicode_form, ascii_form = "ann@bücher.example", "ann@xn--bcher-kva.example"
    mail = [record(1, to=[unicode_form]), record(2, to=[ascii_form]), record(3, to=["ann@bucher.example"])]
    files = ServerFiles(make_index(tmp_path / "mail", mail).path.parent, write_tokenizer(tmp_path / "model"))
    access = {"jwks_url": f"{provider[1]}/keys", "issuer": ISSUER, "audience": AUDIENCE}
    key = add_key(tmp_path / "keys", "domain", ["*@Bücher.example"])
    given = {"model": model_settings(files, model.address), "access": {**access, "keys": str(tmp_path / "keys")}}
    with serve_in_thread(make_settings(files, **given)) as server:
        for email in (unicode_form, ascii_form):
            for credentials in (provider[0].token(email=email), key):
                named = {"Authorization": f"Bearer {credentials}"}
                for inbox in (unicode_form, ascii_form):
                    for number in (1, 2, 3):
                        body = {"source_id": f"<{number}@example.com>", "inbox_address": inbox, "query_date": DAY}
                        response = server.client.post("/source", json=body, headers=named)
                        assert response.status_code == (404 if number == 3 else 200), response.text
                body = question_body(inbox_address="ann@bucher.example")
                assert server.client.post("/invoke", json=body, headers=named).status_code == 403


INVALID, UNKNOWN, ALGORITHM = "invalid-token", "unknown-signing-key", "unsupported-algorithm"
LIFE = "token-lives-too-long"
INVALID_TOKENS: dict[str, Callable[[Provider], str]] = {
    "expired": lambda made: made.token(exp=int(time.time()) - 3600),
    "without an end": lambda made: made.token(exp=None),
    "not yet": lambda made: made.token(nbf=int(time.time()) + 3600),
    "another audience": lambda made: made.token(aud="other"),
    "no audience": lambda made: made.token(aud=None),
    "another issuer": lambda made: made.token(iss="https://evil.example"),
    "nobody": lambda made: made.token(sub=None),
    "another's key": lambda made: made.token(made.other),
    "a key that is not published": lambda made: made.token(made.other, kid="other"),
    "no key": lambda made: made.token(kid=None),
    "a shared secret that is published": lambda made: made.token(b"0" * 32, "HS256", "shared"),
    "the public key as a secret": lambda made: sign_with_public_key(made, "HS256"),
    "unsigned": lambda made: forge_token(made.token(), alg="none", kid="rsa"),
    "unsigned, in capitals": lambda made: forge_token(made.token(), alg="NONE", kid="rsa"),
    "signature cut off": lambda made: made.token().rpartition(".")[0] + ".",
    "claims changed": lambda made: ".".join(
        [made.token().split(".")[0], made.token(email=EVE).split(".")[1], made.token().split(".")[2]]
    ),
    "its own key": embed_key,
    "without a beginning": lambda made: made.token(iat=None),
    "issued in the future": lambda made: made.token(iat=int(time.time()) + 3600, exp=int(time.time()) + 7200),
    "issued at no number": lambda made: made.token(iat="yesterday"),
    "living too long": lambda made: made.token(exp=int(time.time()) + 86_500),
    "issued long ago": lambda made: made.token(iat=int(time.time()) - 86_400),
    "an empty subject": lambda made: made.token(sub=""),
    "a key for encryption": lambda made: made.token(made.keys["enc"], kid="enc"),
    "a key for encryption with the id of another": lambda made: made.token(made.keys["enc"]),
    "a key for signing only": lambda made: made.token(made.keys["sign"], kid="sign"),
    "a key with an unknown use": lambda made: made.token(made.keys["other use"], kid="other use"),
    "another algorithm than its key's": lambda made: made.token(algorithm="PS256"),
    "an unknown extension that is critical": lambda made: made.token(headers={"crit": ["exp2"], "exp2": 1}),
    "an empty list of critical extensions": lambda made: made.token(headers={"crit": []}),
    "a payload outside": lambda made: made.token(headers={"crit": ["b64"], "b64": False}),
    "a header that is nested deeply": lambda _: base64.urlsafe_b64encode(b"[" * 9000).decode().rstrip("=") + ".e30.x",
    "no token at all": lambda _: "a.b.c",
}
OTHER_CODES = {
    "a key that is not published": UNKNOWN,
    "no key": UNKNOWN,
    "a shared secret that is published": ALGORITHM,
    "the public key as a secret": ALGORITHM,
    "unsigned": ALGORITHM,
    "unsigned, in capitals": ALGORITHM,
    "living too long": LIFE,
    "issued long ago": LIFE,
    "a key for encryption": UNKNOWN,
    "a key for signing only": UNKNOWN,
    "a key with an unknown use": UNKNOWN,
    "another algorithm than its key's": ALGORITHM,
}


@pytest.mark.parametrize("name", INVALID_TOKENS)
def test_an_invalid_token_is_refused(name: str, ask: Ask, provider: tuple[Provider, str]) -> None:
    response = ask(INVALID_TOKENS[name](provider[0]))
    assert response.status_code == 401, response.text
    assert code_of(response) == f"serving.{OTHER_CODES.get(name, INVALID)}"
    assert EVE not in response.text


@pytest.mark.parametrize(
    "claims",
    [
        *({"email": each} for each in (None, "*@example.com", "*", 7)),
        *({"email_verified": each} for each in (None, False, "false", "true", 1)),
    ],
)
def test_a_token_without_a_verified_inbox_reads_none(
    claims: dict[str, Any], ask: Ask, provider: tuple[Provider, str]
) -> None:
    response = ask(provider[0].token(**claims))
    assert (response.status_code, code_of(response)) == (403, "serving.inbox-forbidden")


def test_unknown_keys_do_not_cause_a_request_each(
    provider: tuple[Provider, str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider is asked once, and again after a pause."""
    from gumshoe.serving import token_access
    from gumshoe.serving.access import UnauthenticatedError

    monkeypatch.setattr(token_access, "_PAUSE", 3600.0)
    made, address = provider
    opened = make_access(f"{address}/keys")
    for before in (JwksHandler.requests, JwksHandler.requests + 1):
        for number in range(20):
            with pytest.raises(UnauthenticatedError) as raised:
                asyncio.run(opened.authenticate(made.token(made.other, kid=f"made-up-{number}")))
            assert raised.value.code == "serving.unknown-signing-key"
        assert JwksHandler.requests == before + 1
        clock.advance(3601)


def test_a_new_signing_key_is_accepted_within_seconds_whatever_an_attacker_sends(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens with made-up keys neither cause more requests than the pause allows, nor keep a new key from working."""
    from gumshoe.serving import token_access
    from gumshoe.serving.access import UnauthenticatedError

    monkeypatch.setattr(JwksHandler, "keys", JwksHandler.keys)
    made = Provider()

    async def attack_and_rotate(opened: "Access") -> tuple[int, int]:
        requests, rotated = JwksHandler.requests, None
        for second in range(100):
            for number in range(5):
                with suppress(UnauthenticatedError):
                    await opened.authenticate(made.token(made.other, kid=f"made-up-{second}-{number}"))
            if second == 50:
                JwksHandler.keys = [publish(made.other, kid="new"), *JwksHandler.keys]
            if second >= 50 and rotated is None:
                with suppress(UnauthenticatedError):
                    await opened.authenticate(made.token(made.other, kid="new"))
                    rotated = second - 50
            clock.advance(1)
        assert rotated is not None
        return JwksHandler.requests - requests, rotated

    with run_server(ThreadingHTTPServer(("127.0.0.1", 0), JwksHandler)) as address:
        opened = make_access(f"{address}/keys")
        requests, delay = asyncio.run(attack_and_rotate(opened))
    assert requests <= 100 / token_access._PAUSE + 1
    assert delay <= token_access._PAUSE <= 10


def test_unverified_addresses_can_be_trusted(provider: tuple[Provider, str]) -> None:
    made, address = provider
    token = made.token(email_verified=None)
    assert authenticate(token, f"{address}/keys", verified_email=False).patterns == (ANN,)
    assert authenticate(token, f"{address}/keys").patterns == ()
    named = authenticate(made.token(mail=BOB), f"{address}/keys", inbox_claim="mail")
    assert named.patterns == (BOB,), "email_verified only applies to the claim email"


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [
        ("hr", ("hr", "open")),
        (["hr", "eng-docs"], ("hr", "eng-docs", "open")),
        (["hr", "*", "eng-*", "HR", "h r", "hr\n", 7, None, ["x"], "\u212a"], ("hr", "open")),
        ("*", ("open",)),
        ({"hr": True}, ("open",)),
        (None, ("open",)),
    ],
)
def test_claims_name_collections_without_patterns(
    claimed: Any, expected: tuple[str, ...], provider: tuple[Provider, str]
) -> None:
    made, address = provider
    token, url = made.token(groups=claimed), f"{address}/keys"
    assert authenticate(token, url, collection_claim="groups", collections=["open"]).collections == expected
    assert authenticate(token, url, collections=["open"]).collections == ("open",)


@pytest.mark.parametrize("path", ["slow", "endless"])
def test_a_slow_or_endless_key_response_is_aborted(
    path: str, provider: tuple[Provider, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.serving import token_access
    from gumshoe.serving.access import SigningKeysUnavailableError

    monkeypatch.setattr(token_access, "_TIMEOUT", 0.3 if path == "slow" else 3600.0)
    made, address = provider
    with pytest.raises(SigningKeysUnavailableError) as raised:
        authenticate(made.token(), f"{address}/{path}")
    check_error(raised.value, "serving.signing-keys-unavailable")


def test_tokens_are_refused_while_the_provider_is_unreachable(
    place: ServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    made = Provider()
    access = {"jwks_url": "http://127.0.0.1:9/keys", "issuer": ISSUER, "audience": AUDIENCE}
    settings = make_settings(place, model={"policy": "chat:x@http://127.0.0.1:9"}, access=access)
    with serve_in_thread(settings, ready=False) as server:
        response = server.client.post(
            "/invoke", json=question_body(), headers={"Authorization": f"Bearer {made.token()}"}
        )
    assert (response.status_code, code_of(response)) == (503, "serving.signing-keys-unavailable")


@pytest.mark.parametrize(
    ("url", "is_accepted"),
    [
        ("https://login.example/keys", True),
        ("http://keycloak.auth.svc/keys", True),
        ("http://keycloak:8080/keys", True),
        ("http://127.0.0.1:8080/keys", True),
        ("http://login.example/keys", False),
        ("http://93.184.216.34/keys", False),
        ("file:///etc/keys", False),
        ("login.example/keys", False),
    ],
)
def test_signing_keys_are_fetched_only_where_nobody_can_replace_them(url: str, is_accepted: bool) -> None:
    from pydantic import ValidationError

    from gumshoe.serving.access_settings import AccessSettings

    given = {"jwks_url": url, "issuer": ISSUER, "audience": AUDIENCE}
    if is_accepted:
        assert AccessSettings(**given).jwks_url == url
    else:
        with pytest.raises(ValidationError, match="jwks_url"):
            AccessSettings(**given)
