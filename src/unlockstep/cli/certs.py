"""``unlockstep certs``: an authority, certificates and tokens for the syncer of one group of sites, in one folder.

::

    ca.pem ca.key             the authority: ca.pem is for every client, ca.key stays where it is safe
    syncer.pem syncer.key     what the syncer shows
    tokens.toml               digests of all tokens, with their names, roles and ends (``net.access.tokens``)
    NAME.token                a token, for whoever is to have it
    NAME.pem NAME.key         a client's certificate, where the syncer asks for one

Decides names of files and who may read them, and that nothing is overwritten or left half made. Does not decide what a
certificate holds (``certificates``) or a token may do (``net.access.roles``).
"""

from __future__ import annotations

import datetime
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlockstep.cli.access import CA_FILE, CERT_FILE, KEY_FILE, TOKENS_FILE
from unlockstep.core.errors import UsageError
from unlockstep.core.ids import is_learner_name
from unlockstep.core.words import counted
from unlockstep.files import whole

if TYPE_CHECKING:
    from unlockstep.certificates import Certificate, Pair
    from unlockstep.net.access.roles import Role
    from unlockstep.net.access.tokens import Entry

CA_KEY_FILE = "ca.key"
AUTHORITY_NAME = "unlockstep authority"
SYNCER_DAYS = 365
OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Every syncer's certificate is for these, too: for a look at it on its own machine."""

SECRET, PUBLIC = 0o600, 0o644

certs = typer.Typer(
    help="Make and show the certificates and tokens of a syncer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the certificates and tokens.")]
Days = Annotated[int, typer.Option(help="For how many days it is valid.")]


@certs.command()
def make(
    folder: Folder,
    host: Annotated[list[str], typer.Option(help="Name or address under which the syncer is reached; repeatable.")],
    days: Days = SYNCER_DAYS,
) -> None:
    """Make all that a syncer and its sites need. That is an authority, a certificate, and a token for every role."""
    from unlockstep.certificates import AUTHORITY_DAYS, issue, new_authority
    from unlockstep.net.access.roles import Role
    from unlockstep.net.access.tokens import Entry, new_token, token_digest
    from unlockstep.net.wire.names import bracketed

    hosts = _hosts(host)
    _require_days(days)
    now = _now()
    authority = new_authority(AUTHORITY_NAME, now, max(days, AUTHORITY_DAYS))
    syncer = issue(authority, "unlockstep syncer", hosts, now, days)
    tokens = {role.value: new_token() for role in Role}
    entries = {role.value: Entry(role, token_digest(tokens[role.value])) for role in Role}
    files = {
        CA_FILE: (authority.cert, PUBLIC),
        CA_KEY_FILE: (authority.key, SECRET),
        CERT_FILE: (syncer.cert, PUBLIC),
        KEY_FILE: (syncer.key, SECRET),
        TOKENS_FILE: (_tokens_text(entries), SECRET),
        **{f"{name}.token": (f"{token}\n".encode(), SECRET) for name, token in tokens.items()},
    }
    _write_folder(folder, files)
    url, listen = f"https://{bracketed(host[0])}:7077", "[::]:7077" if ":" in host[0] else ":7077"
    print(
        f"made in {folder}: an authority, a certificate for {', '.join(hosts)} ({counted(days, 'day')}), a token for "
        "every role\n"
        f"the syncer:     unlockstep syncer --listen {listen} --advertise {url} --secrets {folder}\n"
        f"every learner:  unlockstep learner --syncer {url} --ca {CA_FILE} --token-file learner.token\n"
        f"give each site {CA_FILE} and one token, over a way that you trust; {CA_KEY_FILE} signs certificates: nobody\n"
        f"needs it to run, so keep it where only you can read it. More tokens: unlockstep certs token {folder} --help"
    )


@certs.command()
def renew(
    folder: Folder,
    host: Annotated[list[str] | None, typer.Option(help="Names and addresses; as before, if not given.")] = None,
    days: Days = SYNCER_DAYS,
) -> None:
    """Make the syncer's certificate anew. Its key stays: a syncer that runs takes it up by itself."""
    from unlockstep.certificates import issue

    _require_days(days)
    path, key = folder / CERT_FILE, folder / KEY_FILE
    with _changing(folder):
        hosts = _hosts(host) if host else list(_certificate(path).names)
        if not hosts:
            raise UsageError(f"{path} is for no host; say for which with --host")
        pair = _issued(folder, lambda ca: issue(ca, "unlockstep syncer", hosts, _now(), days, _read(key)))
        _replace(path, pair.cert, PUBLIC)
    print(f"{path} is valid until {_day(_certificate(path).ends)}; a syncer that uses it takes it up by itself")


@certs.command()
def client(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Of the client; names its files.")],
    days: Days = SYNCER_DAYS,
) -> None:
    """Make a certificate for a client. It needs one where the syncer asks for it (--client-ca)."""
    from unlockstep.certificates import issue

    _require_name(name)
    _require_days(days)
    with _changing(folder):
        pair = _issued(folder, lambda ca: issue(ca, name, (), _now(), days))
        _write_new(folder, {f"{name}.pem": (pair.cert, PUBLIC), f"{name}.key": (pair.key, SECRET)})
    print(
        f"made {folder / name}.pem and .key, for --cert and --key of one client\n"
        f"the syncer asks for them with:  --secrets {folder} --client-ca {folder / CA_FILE}"
    )


@certs.command()
def token(
    folder: Folder,
    role: Annotated[str, typer.Option(help="learner, evaluator, observer or admin.")],
    name: Annotated[str, typer.Option(help="Of the token: in the audit trail, and of its file.")],
    days: Annotated[int | None, typer.Option(help="For how many days it is valid; for good, if not given.")] = None,
    learners: Annotated[
        str, typer.Option(help="It may only speak for learners whose names begin so; for any, if not given.")
    ] = "",
) -> None:
    """Make one more token. It is for another site, or replaces one: hand it out, then revoke the old one."""
    from unlockstep.net.access.tokens import Entry, new_token, read_tokens, token_digest

    chosen = _role(role)
    _require_name(name)
    if learners and not is_learner_name(learners):
        raise UsageError(f"--learners is {learners!r}; give what the learners' names begin with")
    if days is not None:
        _require_days(days)
    ends = None if days is None else (_now() + datetime.timedelta(days=days)).replace(microsecond=0)
    with _changing(folder):
        path = folder / TOKENS_FILE
        entries = read_tokens(path)
        if name in entries:
            raise UsageError(f"{path} has a token named {name!r} already; choose another name, or revoke it first")
        secret = new_token()
        entries[name] = Entry(chosen, token_digest(secret), ends, learners)
        _write_new(folder, {f"{name}.token": (f"{secret}\n".encode(), SECRET)})
        try:
            _replace(path, _tokens_text(entries), SECRET)
        except BaseException:
            (folder / f"{name}.token").unlink()
            raise
    until = "for good" if ends is None else f"until {_day(ends)}"
    print(
        f"made {folder / name}.token, for a {chosen.value}, valid {until}; a syncer that runs accepts it in a second\n"
        f"whoever gets it says:  --token-file {name}.token"
    )


@certs.command()
def revoke(folder: Folder, name: Annotated[str, typer.Argument(help="Of the token.")]) -> None:
    """Take a token away: who is connected with it is cut off."""
    from unlockstep.net.access.tokens import read_tokens

    with _changing(folder):
        path = folder / TOKENS_FILE
        entries = read_tokens(path)
        if name not in entries:
            raise UsageError(f"{path} has no token named {name!r}; it has {', '.join(entries) or 'none'}")
        del entries[name]
        _replace(path, _tokens_text(entries), SECRET)
        (folder / f"{name}.token").unlink(missing_ok=True)
    print(f"the token {name} is valid no more; a syncer that runs cuts off in a second who uses it")


@certs.command()
def show(folder: Folder) -> None:
    """List certificates and tokens, and when they end."""
    from unlockstep.net.access.tokens import read_tokens

    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; make one with `unlockstep certs make`")
    for path in sorted(folder.glob("*.pem")):
        found = _certificate(path)
        what = "authority" if found.is_authority else ", ".join(found.names) or f"client {found.subject}"
        print(f"{path.name:24} {_ends(found.ends):32} {what}")
    for name, entry in read_tokens(folder / TOKENS_FILE).items():
        ends = "for good" if entry.expires is None else _ends(entry.expires)
        only = f", for learners named {entry.learners}..." if entry.learners else ""
        print(f"token {name:18} {ends:32} {entry.role.value}{only}")


# ------------------------------------------------------------------------------------------------ what is given


def _hosts(given: list[str]) -> list[str]:
    from unlockstep.certificates import is_host

    for name in given:
        if not is_host(name):
            raise UsageError(f"--host is {name!r}; give a host name or an IP address, without port or https://")
    return list(dict.fromkeys([*given, *OWN_HOSTS]))


def _require_days(days: int) -> None:
    from unlockstep.certificates import DAYS_MAX

    if not 1 <= days <= DAYS_MAX:
        raise UsageError(f"--days is {days}; it must be at least 1 and at most {DAYS_MAX}")


def _require_name(name: str) -> None:
    if not is_learner_name(name):
        raise UsageError(f"the name is {name!r}; use letters, digits, _ and - (64 at most, no mark in front)")


def _role(text: str) -> Role:
    from unlockstep.net.access.roles import Role

    try:
        return Role(text)
    except ValueError:
        raise UsageError(f"--role is {text!r}; choose one of {', '.join(role.value for role in Role)}") from None


# ------------------------------------------------------------------------------------------------ files


def _write_folder(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """All of them, in a new folder, or none."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; nothing is overwritten: choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))  # mode 700
        try:
            _write_new(made, files)
            made.rename(folder)  # onto a folder that is empty or not there
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise _unwritable(folder, error) from None


def _write_new(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """All of them, in a folder that is there, or none; never over a file."""
    written: list[Path] = []
    try:
        for name, (content, mode) in files.items():
            path = folder / name
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
    except FileExistsError:
        _remove(written)
        raise UsageError(f"{folder / name} exists; nothing is overwritten: choose another name") from None
    except OSError as error:
        _remove(written)
        raise _unwritable(folder, error) from None


def _replace(path: Path, content: bytes, mode: int) -> None:
    """A file by another one, at once."""
    try:
        with whole(path) as partial:
            partial.touch(mode)
            partial.write_bytes(content)
    except OSError as error:
        raise _unwritable(path, error) from None


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


@contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """One process at a time."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{folder} is not to be had ({reason}); make it with `unlockstep certs make`") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written ({error.strerror or error}); choose a folder you may write to")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{path} cannot be read ({reason}); it was made by `unlockstep certs make`") from None


def _issued(folder: Path, issue: Callable[[Pair], Pair]) -> Pair:
    """What the folder's authority signs."""
    from unlockstep.certificates import Pair

    authority = Pair(_read(folder / CA_FILE), _read(folder / CA_KEY_FILE))
    try:
        return issue(authority)
    except (ValueError, TypeError) as error:  # what cryptography raises for a damaged or locked key
        raise UsageError(
            f"the authority in {folder} is of no use ({error}); restore {CA_FILE} and {CA_KEY_FILE}, or make a new one"
        ) from None


def _certificate(path: Path) -> Certificate:
    from unlockstep.certificates import NotACertificate, read_certificate

    try:
        return read_certificate(path)
    except NotACertificate as error:
        raise UsageError(f"{path} is no certificate ({error}); restore it, or remove it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}); check path and permissions") from None


def _tokens_text(entries: Mapping[str, Entry]) -> bytes:
    import msgspec
    import tomli_w

    def told(entry: Entry) -> dict[str, object]:
        fields = {name: value for name, value in msgspec.structs.asdict(entry).items() if value not in (None, "")}
        return fields | {"role": entry.role.value}

    return tomli_w.dumps({"tokens": {name: told(entry) for name, entry in entries.items()}}).encode()


# ------------------------------------------------------------------------------------------------ time


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _day(when: datetime.datetime) -> str:
    return f"{when:%Y-%m-%d}"


def _ends(when: datetime.datetime) -> str:
    days = (when - _now()).total_seconds() / 86400
    return f"until {_day(when)} " + (f"({counted(days, 'day')})" if days > 0 else "(EXPIRED)")
