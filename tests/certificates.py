"""Make certificates for servers that tests run."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


def make_certificate(name: str) -> bytes:
    """Return a key and a self-signed certificate for a host name, as PEM."""
    from cryptography import x509

    key = _make_key()
    subject = _name(name)
    builder = _start(subject, subject, key).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
    )
    return _private_pem(key) + _sign(builder, key)


@dataclass(frozen=True)
class CertificateAuthority:
    """A private authority. Clients trust what it issues only if they have its certificate."""

    name: str = "Private authority"
    key: "EllipticCurvePrivateKey" = field(default_factory=lambda: _make_key())

    @cached_property
    def certificate(self) -> bytes:
        """The authority's own certificate, as PEM."""
        from cryptography import x509

        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        subject = _name(self.name)
        builder = (
            _start(subject, subject, self.key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
        )
        return _sign(builder, self.key)

    def issue(self, *names: str) -> bytes:
        """Return a key and a certificate for host names and IP addresses, as PEM."""
        from cryptography import x509

        key = _make_key()
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _start(_name(names[0]), _name(self.name), key)
            .add_extension(x509.SubjectAlternativeName([*map(_alternative_name, names)]), critical=False)
            .add_extension(issuer, critical=False)
        )
        return _private_pem(key) + _sign(builder, self.key)


def _make_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative_name(text: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _start(subject: "x509.Name", issuer: "x509.Name", key: "EllipticCurvePrivateKey") -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _sign(builder: "x509.CertificateBuilder", key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _private_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
