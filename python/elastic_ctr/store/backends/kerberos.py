"""Kerberos for servers behind HTTP, with a keytab. MIT's library acquires the tickets, and renews them when half of their life is over."""

import base64
from pathlib import Path

from elastic_ctr.store.backends.backend import StoreError

_SPNEGO = "1.3.6.1.5.5.2"
_CLOCKS = "the clocks of this machine, the KDC and HDFS are too far apart; set them by NTP"
# Codes of krb5.h, as GSSAPI returns them.
_NO_KDC = {-1765328228, -1765328230, -1765328164}  # KDC_UNREACH, REALM_UNKNOWN, REALM_CANT_RESOLVE
_OLD_KEY = {-1765328360, -1765328353}  # PREAUTH_FAILED, BAD_INTEGRITY
_CLIENT_UNKNOWN = -1765328378
_SERVER_UNKNOWN = -1765328377
_NO_KEY = {-1765328189, -1765328203}  # FCC_NOFILE, KT_NOTFOUND
_SKEW = {-1765328347, -1765328351}  # AP_ERR_SKEW, AP_ERR_TKT_NYV
_NO_REALM = -1765328160


class KerberosRefusal(Exception):
    """There is no ticket, or the server does not accept it. The message has the reason and the way out; `passing`: a retry may help."""

    def __init__(self, sentence: str, *, passing: bool = False) -> None:
        super().__init__(sentence)
        self.passing = passing


class Keytab:
    """A file with the key of a principal; `setting` is the section of the settings that names both."""

    def __init__(self, principal: str, file: str, setting: str) -> None:
        """Raises StoreError where the package gssapi is absent."""
        try:
            import gssapi  # noqa: F401
        except ImportError as absent:
            raise StoreError(
                f"{setting}.keytab needs the Python package gssapi, and it cannot be imported ({absent}); with gcc and libkrb5-dev of "
                "Debian, run `python -m pip install -r requirements/kerberos.txt`"
            ) from absent
        self._principal = principal
        self._file = file
        self._setting = setting

    def header(self, host: str) -> dict[str, str]:
        """Return the header that shows the principal to the HTTP server of a host. Raises KerberosRefusal."""
        import gssapi

        try:
            with Path(self._file).open("rb"):
                pass
        except OSError as failed:
            raise KerberosRefusal(
                f"{self._setting}.keytab {self._file} cannot be read: {failed.strerror}; is its Secret mounted there?"
            ) from failed
        token = b""
        try:
            credentials = gssapi.Credentials(
                name=gssapi.Name(self._principal, gssapi.NameType.kerberos_principal),
                usage="initiate",
                store={"client_keytab": f"FILE:{self._file}", "ccache": f"MEMORY:{self._file} {self._principal}"},
            )
            server = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
            # SPNEGO's errors hide the codes of Kerberos, so Kerberos fetches the ticket that SPNEGO then has.
            for mechanism in (gssapi.MechType.kerberos, gssapi.OID.from_int_seq(_SPNEGO)):
                token = gssapi.SecurityContext(name=server, creds=credentials, mech=mechanism, usage="initiate").step()
        except gssapi.exceptions.GSSError as failed:
            raise self._refusal(failed.min_code, str(failed), host) from failed
        return {"authorization": f"Negotiate {base64.b64encode(token).decode()}"}

    def _refusal(self, minor: int, words: str, host: str) -> KerberosRefusal:
        code = minor - (1 << 32) if minor >= 1 << 31 else minor
        principal, keytab = f"{self._setting}.user {self._principal}", f"{self._setting}.keytab {self._file}"
        if code in _NO_KDC:
            return KerberosRefusal(
                f"no KDC answers for {self._principal}; does krb5.conf name it, and is port 88 (TCP and UDP) open to it?",
                passing=True,
            )
        if code == _CLIENT_UNKNOWN:
            return KerberosRefusal(f"the KDC does not know {principal}; is it the principal that the keytab is of?")
        if code == _SERVER_UNKNOWN:
            return KerberosRefusal(
                f"the KDC does not know HTTP/{host}; give {self._setting}.url the name by which HDFS's own principal has that host"
            )
        if code in _OLD_KEY:
            return KerberosRefusal(
                f"{keytab} has a key of {self._principal} that is not valid any more; export the keytab again"
            )
        if code in _NO_KEY:
            return KerberosRefusal(f"{keytab} has no key of {self._principal}; `klist -k` lists those that it has")
        if code in _SKEW:
            return KerberosRefusal(_CLOCKS)
        if code == _NO_REALM:
            return KerberosRefusal(f"{principal} has no realm, and krb5.conf has no default_realm; give NAME@REALM")
        return KerberosRefusal(f"there is no Kerberos ticket for {self._principal}: {words}")

    def refused_by(self, server: str, words: str) -> KerberosRefusal:
        """Return the error of a server that does not accept the ticket; `words` are its reason."""
        if "Clock skew" in words or "not yet valid" in words:
            return KerberosRefusal(_CLOCKS)
        return KerberosRefusal(
            f"{server} does not accept the ticket of {self._principal} ({words}); has its keytab the present key of its own principal?"
        )
