"""TLS at both ends: the contexts, and what is said when a certificate is not the right one.

Decides that nothing below TLS 1.2 is spoken, that a syncer's certificate is always checked, name and all, that a key
which others may read is not used, and the sentence for everything that can go wrong. Does not decide who must show a
certificate or a token (``security``), nor how certificates are made (``certificates``).
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

from unlockstep.core.errors import UsageError

ALPN = ("http/1.1",)

_VERIFY_EXPIRED = 10
_VERIFY_NOT_YET_VALID = 9
_VERIFY_OTHER_NAME = (62, 64)
_VERIFY_OTHER_USE = (24, 26)
"""OpenSSL's codes (``X509_V_ERR_*``). Of what is not listed here, the certificate was made by somebody else."""


def client_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """What a client speaks TLS with.

    Args:
        ca: who vouches for the syncer's certificate; None: whoever this machine trusts.
        cert, key: its own certificate, where the syncer asks for one.

    Raises:
        UsageError: one of the files is of no use.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    if ca is None:
        context.load_default_certs()
    else:
        _trust(context, ca, "--ca", "the ca.pem that `unlockstep certs make` wrote for the syncer")
    if cert is not None or key is not None:
        if cert is None or key is None:
            given, missing = ("--cert", "--key") if key is None else ("--key", "--cert")
            raise UsageError(f"{given} is given without {missing}; a certificate and its key are used together")
        load_pair(context, cert, key)
    return context


def server_context(cert: Path, key: Path, client_ca: Path | None, now_s: float) -> ssl.SSLContext:
    """What a syncer speaks TLS with.

    Args:
        cert, key: its certificate (with those in between, if any) and key.
        client_ca: who vouches for the certificates that clients must then have; None: they need none.
        now_s: seconds since 1970.

    Raises:
        UsageError: one of the files is of no use, or the certificate is not valid now.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(ALPN)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, client_ca, "--client-ca", "the ca.pem that has signed the clients' certificates")
    require_valid_now(cert, now_s)
    load_pair(context, cert, key)
    return context


def load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Use a certificate with its key from now on. Raises UsageError."""
    _require_readable(cert, "certificate")
    _require_readable(key, "key")
    _require_private(key)
    asked: list[bool] = []

    def password() -> str:  # Without it OpenSSL would stop and ask at the terminal.
        asked.append(True)
        return "-"

    try:
        context.load_cert_chain(cert, key, password)
    except ssl.SSLError as error:
        if asked:
            raise UsageError(f"key {key} is locked with a password; unlock it with `openssl pkey`, mode 600") from None
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"key {key} is not that of certificate {cert}; give the two that were made together"
            ) from None
        raise UsageError(
            f"certificate {cert} and key {key} cannot be used ({error.reason or 'not PEM'}); give PEM files, as "
            "`unlockstep certs` writes them"
        ) from None
    except OSError as error:
        raise UsageError(f"certificate {cert} and key {key} cannot be read ({error.strerror or error})") from None


def require_valid_now(cert: Path, now_s: float) -> None:
    """Raises UsageError if the certificate has expired or is not valid yet."""
    # Late: a client, which needs none of it, starts without.
    from unlockstep.certificates import NotACertificate, read_certificate

    _require_readable(cert, "certificate")
    try:
        found = read_certificate(cert)
    except NotACertificate as error:
        raise UsageError(
            f"certificate {cert} is none ({error}); give a PEM file, as `unlockstep certs` writes it"
        ) from None
    if found.ends_s <= now_s:
        raise UsageError(
            f"certificate {cert} has expired on {found.ends}; make a new one with `unlockstep certs renew` "
            "on the machine that has its ca.key"
        )
    if found.begins_s > now_s:
        raise UsageError(
            f"certificate {cert} is valid from {found.begins} on only; set the clock of this machine right"
        )


def _trust(context: ssl.SSLContext, ca: Path, option: str, what: str) -> None:
    _require_readable(ca, f"{option} file")
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(f"{option} file {ca} holds no certificate ({reason}); give {what}") from None


def _require_readable(path: Path, what: str) -> None:
    try:
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise UsageError(f"{what} {path} does not exist; check the path, or make it with `unlockstep certs`") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{what} {path} cannot be read ({reason}); check path and permissions") from None


def _require_private(key: Path) -> None:
    if os.name == "posix" and key.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(f"key {key} may be read by everybody on this machine, so it is no secret; chmod 600 {key}")


# ---------------------------------------------------------------------------------------------- what a client is told


def tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """What TLS itself had to say, somewhere inside what an HTTP library raised."""
    found = None
    for _ in range(8):
        if isinstance(error, ssl.SSLError):
            found = error  # aiohttp's own are of this kind, too, but the one further in knows more.
        inner = (getattr(error, name, None) for name in ("certificate_error", "os_error", "reason", "__cause__"))
        error = next((each for each in inner if isinstance(each, BaseException)), None)
    return found


def explained_to_client(error: ssl.SSLError, url: str, ca: Path | None) -> str:
    """One sentence on why there is no TLS connection to a syncer, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_explained(error, url, ca)
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return f"what answers at {url} does not speak TLS; write http:// if that is meant, or start it with --secrets"
    if "ALERT_CERTIFICATE_REQUIRED" in reason:
        return (
            f"the syncer at {url} asks for a certificate; give --cert and --key (in Python: cert= and key=), made with "
            "`unlockstep certs client`"
        )
    if "CERTIFICATE_EXPIRED" in reason:
        return f"the syncer at {url} says that the certificate shown has expired; ask for a new one"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "DECRYPT" in reason):
        return f"the syncer at {url} does not accept the certificate shown; give one that its authority has signed"
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return f"the syncer at {url} does not speak TLS 1.2 or newer; use one that does"
    return f"no TLS connection to {url} ({reason or error}); check that it is an unlockstep syncer"


def _certificate_explained(error: ssl.SSLCertVerificationError, url: str, ca: Path | None) -> str:
    code = getattr(error, "verify_code", 0)
    if code == _VERIFY_EXPIRED:
        return (
            f"the certificate of the syncer at {url} has expired; have it renewed (`unlockstep certs renew`), or set "
            "this machine's clock right"
        )
    if code == _VERIFY_NOT_YET_VALID:
        return f"the certificate of the syncer at {url} is not valid yet; set this machine's clock right"
    if code in _VERIFY_OTHER_NAME:
        return (
            f"the certificate of the syncer at {url} is for another name; use a name it has, or make it with this one "
            "(`unlockstep certs make --host`)"
        )
    if code in _VERIFY_OTHER_USE:
        return f"the certificate of the syncer at {url} is not one for a syncer; use syncer.pem of `unlockstep certs`"
    if ca is None:
        return (
            f"nobody this machine trusts vouches for the syncer at {url}; give the ca.pem of its `unlockstep certs` "
            "with --ca (in Python: ca=)"
        )
    return f"{ca} does not vouch for the syncer at {url}; take the ca.pem of that syncer, if it is the one you mean"


# -------------------------------------------------------------------------------------------- what a syncer writes down


def explained_to_syncer(error: Exception) -> str | None:
    """Why a client's TLS handshake has failed, in a few words; None: the client hung up, and nobody was refused."""
    if isinstance(error, TimeoutError | ConnectionAbortedError):  # asyncio's, when the handshake takes too long
        return "the TLS handshake took too long"
    if not isinstance(error, ssl.SSLError):
        return None  # A look whether the port is open, for one.
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _VERIFY_EXPIRED:
            return "the client's certificate has expired"
        return f"the client's certificate is not one of ours ({error.verify_message})"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client has no certificate"
    if reason in ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST"):
        return "the client speaks plain HTTP to a TLS port"
    if "ALERT" in reason:
        return f"the client does not accept this syncer's certificate ({reason.lower().replace('_', ' ')})"
    if "PROTOCOL" in reason:
        return "the client speaks TLS older than 1.2"
    return f"the client does not speak TLS ({reason.lower().replace('_', ' ') or 'cut off'})"
