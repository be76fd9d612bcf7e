"""An identity provider: sign tokens, also ones that nobody should accept, and publish the keys to verify them."""

import asyncio
import base64
import hmac
import json
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from tests.serving.agent_server import ANN, EVE

if TYPE_CHECKING:
    from gumshoe.serving.access import Access, Principal

ISSUER, AUDIENCE = "https://login.example", "gumshoe"


class JwksHandler(BaseHTTPRequestHandler):
    """Publish the keys of an identity provider. Other paths answer slowly or endlessly."""

    keys: list[dict[str, Any]]
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        if self.path in ("/slow", "/endless"):
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # the client has disconnected
                while True:
                    self.wfile.write(b" " if self.path == "/slow" else b" " * 65536)
                    time.sleep(0.05 if self.path == "/slow" else 0)
            return
        data = json.dumps({"keys": self.keys}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def publish(key: Any, **fields: Any) -> dict[str, Any]:
    """Return the JWK of an RSA key."""
    import jwt

    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return {name: value for name, value in public.items() if name != "key_ops"} | fields


class Provider:
    """Sign tokens, and publish the keys to verify them."""

    def __init__(self) -> None:
        import jwt
        from cryptography.hazmat.primitives.asymmetric import ec, rsa

        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        limits: dict[str, dict[str, Any]] = {
            "enc": {"use": "enc"},
            "sign": {"key_ops": ["sign"]},
            "other use": {"use": "SIG"},
            "verify": {"use": "sig", "key_ops": ["verify"]},
        }
        self.keys = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in limits}
        limited = [publish(self.keys[name], kid=name, **limit) for name, limit in limits.items()]
        JwksHandler.keys = [
            publish(self.rsa, kid="rsa", alg="RS256"),
            *limited,
            publish(self.keys["enc"], kid="rsa", use="enc"),
            {"kty": "unknown", "kid": "unknown"},
            json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.ec.public_key())) | {"kid": "ec"},
            {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"0" * 32).decode(), "alg": "HS256"},
        ]

    def token(
        self,
        key: Any = None,
        algorithm: str = "RS256",
        kid: str | None = "rsa",
        headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        import jwt

        given = {name: value for name, value in (jwt_claims() | claims).items() if value is not None}
        headers = {**(headers or {}), **({"kid": kid} if kid else {})}
        if isinstance(given.get("iat"), str) or "crit" in headers:  # the library refuses to write these
            return sign(headers, given, self.rsa)
        return jwt.encode(given, self.rsa if key is None else key, algorithm=algorithm, headers=headers)


def sign(header: dict[str, Any], claims: dict[str, Any], key: Any) -> str:
    """Return a token with any header and claims, signed with RS256."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    parts = [json.dumps({"alg": "RS256", **header}).encode(), json.dumps(claims).encode()]
    signed = b".".join(base64.urlsafe_b64encode(each).rstrip(b"=") for each in parts)
    signature = key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
    return f"{signed.decode()}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def jwt_claims() -> dict[str, Any]:
    """Return the claims of a valid token of Ann's."""
    now = int(time.time())
    return {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "iat": now,
        "exp": now + 600,
        "email": ANN,
        "email_verified": True,
    }


def forge_token(token: str, **header: Any) -> str:
    """Return an unsigned token with another token's claims and a different header."""
    parts = [json.dumps(header).encode(), base64.urlsafe_b64decode(token.split(".")[1] + "==")]
    return ".".join([*(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts), ""])


def sign_with_public_key(made: Provider, algorithm: str) -> str:
    """Return a token signed with the public key as an HMAC secret, which libraries refuse to do."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    head = json.dumps({"alg": algorithm, "kid": "rsa"}).encode()
    signed = b".".join([base64.urlsafe_b64encode(head).rstrip(b"="), made.token().split(".")[1].encode()])
    pem = made.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = base64.urlsafe_b64encode(hmac.digest(pem, signed, "sha256")).rstrip(b"=")
    return b".".join([signed, signature]).decode()


def embed_key(made: Provider) -> str:
    """Return a token whose header contains the key that it is signed with."""
    import jwt

    key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(made.other.public_key()))
    return jwt.encode({**jwt_claims(), "email": EVE}, made.other, algorithm="RS256", headers={"jwk": key, "kid": "rsa"})


def make_access(url: str, **changes: Any) -> "Access":
    """Return the access control of a server that accepts the provider's tokens."""
    from gumshoe.serving.access_control import open_access
    from gumshoe.serving.access_settings import AccessSettings

    given = {"jwks_url": url, "issuer": ISSUER, "audience": AUDIENCE, **changes}
    return open_access(AccessSettings(**given))


def authenticate(token: str, url: str, **changes: Any) -> "Principal":
    """Return the principal of a token."""
    return asyncio.run(make_access(url, **changes).authenticate(token))
