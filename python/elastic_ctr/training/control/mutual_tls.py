"""Mutual TLS of the forwarders, with certificates in a folder as in cert-manager's Secrets (`tls.crt`, `tls.key`, `ca.crt`).

The CA is the release's own, so any certificate of it is accepted; names are not compared, because pods come and go. The folder is
read for each connection, so renewed certificates need no restart.
"""

import hashlib
import re
import socket
import ssl
from pathlib import Path

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def over_tls(connection: socket.socket, folder: Path, *, server: bool) -> tuple[ssl.SSLSocket, bytes]:
    """Return the connection in TLS 1.3, and the digests of the listening and the connecting side's certificates as this side sees them.

    `connection` has a timeout. Raises OSError, of which ssl.SSLError is one.
    """
    context, own = _loaded(folder, server=server)
    secure = context.wrap_socket(connection, server_side=server)
    theirs = secure.getpeercert(binary_form=True) or b""
    listening, connecting = (own, theirs) if server else (theirs, own)
    return secure, hashlib.sha256(listening).digest() + hashlib.sha256(connecting).digest()


def check_certificates(folder: Path) -> None:
    """Raises OSError, of which ssl.SSLError is one, if the folder is unusable."""
    _loaded(folder, server=True)


def _loaded(folder: Path, *, server: bool) -> tuple[ssl.SSLContext, bytes]:
    """Return the context, and this side's own certificate in DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")
    first = _CERTIFICATE.search((folder / "tls.crt").read_text())
    if first is None:
        raise ssl.SSLError(f"{folder}/tls.crt has no certificate")
    return context, ssl.PEM_cert_to_DER_cert(first[0])
