"""Certificates: an authority of one's own, what it signs, and what a certificate says of itself.

Decides kinds of keys (ECDSA on P-256: a handshake costs a syncer a tenth of what RSA does), what each certificate may
be used for, and for how long. Does not decide where they are kept (``cli.certs``) nor who must show one (``net``).
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
DAYS_MAX = 36_500
BACKDATED_MINUTES = 10
"""Before now, from which on a certificate is valid: the clocks of other machines differ."""

FILE_BYTES_MAX = 1024 * 1024

_HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


class NotACertificate(Exception):
    """Its text says why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says of itself."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """Hosts and addresses it is for."""
    begins: datetime.datetime
    ends: datetime.datetime
    is_authority: bool

    @property
    def begins_s(self) -> float:
        """Seconds since 1970."""
        return self.begins.timestamp()

    @property
    def ends_s(self) -> float:
        """Seconds since 1970."""
        return self.ends.timestamp()


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both as PEM."""

    cert: bytes
    key: bytes


def read_certificate(path: Path) -> Certificate:
    """The first certificate of a PEM file.

    Raises:
        NotACertificate: the file holds none.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX)
    try:
        return _described(x509.load_pem_x509_certificate(data))
    except ValueError as error:
        raise NotACertificate(str(error).partition(".")[0] or "it is damaged") from None


def parse_certificate(der: bytes) -> Certificate:
    """A certificate as it travels. Raises NotACertificate."""
    try:
        return _described(x509.load_der_x509_certificate(der))
    except ValueError as error:
        raise NotACertificate(str(error).partition(".")[0] or "it is damaged") from None


def is_for(names: Sequence[str], host: str) -> bool:
    """Whether a certificate with these names is one for a host: a name, of which ``*`` may be the first part, or an IP
    address."""
    host = host.rstrip(".").lower()
    known = {name.rstrip(".").lower() for name in names}
    return host in known or f"*.{host.partition('.')[2]}" in known


def is_host(name: str) -> bool:
    """Whether a certificate can be for this: a host name, with ``*`` for its first part perhaps, or an IP address."""
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        labels = name.removeprefix("*.").split(".")
        return len(name) <= 253 and all(_HOST_LABEL.fullmatch(label) for label in labels)


def new_authority(name: str, now: datetime.datetime, days: int = AUTHORITY_DAYS) -> Pair:
    """An authority that may sign certificates of hosts and clients, and no other authority.

    Args:
        name: for people.
        now: with a time zone.
        days: for which it is valid.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = (
        _builder(subject, subject, key.public_key(), now, now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _signed(builder, key, key)


def issue(
    authority: Pair, name: str, hosts: Sequence[str], now: datetime.datetime, days: int, key: bytes | None = None
) -> Pair:
    """A certificate of the authority, at most as long valid as that.

    Args:
        authority: who signs.
        name: for people.
        hosts: of a syncer, names and addresses under which it is reached; of a client none.
        now: with a time zone.
        days: for which it is valid.
        key: as PEM, of the certificate that this one replaces; None makes a new one.

    Raises:
        ValueError: the authority is none, or its key is another.
    """
    signer = x509.load_pem_x509_certificate(authority.cert)
    signing_key = _ec_key(authority.key)
    if signing_key.public_key() != signer.public_key():
        raise ValueError("the authority's key is not that of its certificate")
    own_key = ec.generate_private_key(ec.SECP256R1()) if key is None else _ec_key(key)
    ends = min(now + datetime.timedelta(days=days), signer.not_valid_after_utc)
    use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(_subject(name), signer.subject, own_key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
    return _signed(builder, own_key, signing_key)


def _described(found: x509.Certificate) -> Certificate:
    try:
        sans = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = (*sans.get_values_for_type(x509.DNSName), *map(str, sans.get_values_for_type(x509.IPAddress)))
    except x509.ExtensionNotFound:
        names = ()
    try:
        is_authority = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    return Certificate(
        subject=_spelled(found.subject),
        issuer=_spelled(found.issuer),
        names=names,
        begins=found.not_valid_before_utc,
        ends=found.not_valid_after_utc,
        is_authority=is_authority,
    )


def _spelled(name: x509.Name) -> str:
    commons = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(commons[0].value) if commons else name.rfc4514_string()


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=BACKDATED_MINUTES))
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder, own_key: ec.EllipticCurvePrivateKey, signing_key: ec.EllipticCurvePrivateKey
) -> Pair:
    cert = builder.sign(signing_key, hashes.SHA256())
    key = own_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(cert.public_bytes(serialization.Encoding.PEM), key)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _ec_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not an ECDSA key")
    return key
