"""A real KDC of a realm of its own, as a process of this test: MIT's from Debian, whose own service never runs."""

import base64
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from needs import needs
from ports import free_port

REALM = "EXAMPLE.ORG"
USER = f"ctr@{REALM}"
_SERVERS = tuple(f"{kind}/{host}" for kind in ("hdfs", "HTTP") for host in ("localhost", "127.0.0.1"))
_PATH = f"{os.environ['PATH']}:/usr/sbin"

_KRB5_CONF = """
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  kdc_timesync = {timesync}
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
"""
_KDC_CONF = """
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principals
    key_stash_file = {folder}/stash
    acl_file = {folder}/acl
    max_life = 1d
    supported_enctypes = aes256-cts-hmac-sha1-96:normal
    default_principal_flags = +preauth
  }}
[logging]
  kdc = FILE:{folder}/kdc.log
"""


def why_not_kerberos() -> str:
    """The reason to skip where no KDC can be started; else empty."""
    try:
        import gssapi  # noqa: F401
    except ImportError:
        return needs("kerberos")
    return "" if shutil.which("krb5kdc", path=_PATH) else needs("kerberos")


class Kdc:
    """Owns a folder with the realm's database, krb5.conf, and keytabs: `ctr.keytab` of USER, `hadoop.keytab` of the servers.

    `authority` is the certificate of the servers, which signs itself.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.krb5_conf = self.write_krb5_conf("krb5.conf", self.port)
        (folder / "kdc.conf").write_text(_KDC_CONF.format(realm=REALM, folder=folder, port=self.port))
        self._environment = {
            **os.environ,
            "PATH": _PATH,
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        }
        self._process: subprocess.Popen[bytes] | None = None
        # By these a client finds the realm, and trusts its servers.
        self.environment = {"KRB5_CONFIG": str(self.krb5_conf), "SSL_CERT_FILE": str(folder / "ca.pem")}
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        for server in _SERVERS:
            self.add(server, "hadoop.keytab")
        self.keytab = self.add(USER, "ctr.keytab")
        self.authority, key = folder / "ca.pem", folder / "key.pem"
        self._run(
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(self.authority),
        )  # fmt: skip
        self._run(
            "openssl", "pkcs12", "-export", "-inkey", str(key), "-in", str(self.authority),
            "-out", str(folder / "hadoop.p12"), "-passout", "pass:changeit",
        )  # fmt: skip

    def write_krb5_conf(self, name: str, port: int, *, timesync: bool = True) -> Path:
        """Another krb5.conf of the realm; without `timesync` a client does not correct its clock by the KDC's."""
        file = self.folder / name
        file.write_text(_KRB5_CONF.format(realm=REALM, port=port, timesync=int(timesync)))
        return file

    def _run(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=self._environment)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"

    def add(self, principal: str, keytab: str, life: str = "1 day") -> Path:
        """Create a principal whose tickets live so long, and add its key to a keytab."""
        self._run("kadmin.local", "-q", f'addprinc -randkey -maxlife "{life}" {principal}')
        return self.export(principal, keytab)

    def export(self, principal: str, keytab: str) -> Path:
        """Add a new key of a principal to a keytab: its former keys are worth nothing."""
        file = self.folder / keytab
        self._run("kadmin.local", "-q", f"ktadd -k {file} {principal}")
        return file

    def delete(self, principal: str) -> None:
        self._run("kadmin.local", "-q", f"delprinc -force {principal}")

    def rename(self, principal: str, name: str) -> None:
        self._run("kadmin.local", "-q", f"renprinc -force {principal} {name}")

    def start(self, ahead: str = "") -> "Kdc":
        """Start the KDC; `ahead` is how far its clock goes before ours, as `faketime` takes it."""
        before = ["faketime", "-f", ahead] if ahead else []
        log = self.folder / "kdc.log"
        seen = log.read_text().count("commencing operation") if log.exists() else 0
        self._process = subprocess.Popen(
            [*before, "krb5kdc", "-n"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not log.exists() or log.read_text().count("commencing operation") == seen:
            assert self._process.poll() is None, log.read_text() if log.exists() else "krb5kdc has ended"
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        if self._process is not None:
            # faketime stays beside its program.
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
            self._process = None

    def tickets(self, principal: str, service: str) -> int:
        """How many tickets the KDC has given a principal for a service."""
        lines = (self.folder / "kdc.log").read_text().splitlines()
        return sum("ISSUE" in line and f", {principal} for {service}" in line.replace("  ", " ") for line in lines)

    def header(self, principal: str = "hdfs/localhost", keytab: str = "hadoop.keytab") -> dict[str, str]:
        """The header of a user of HDFS who is not under test, who is its superuser unless named."""
        import gssapi

        credentials = gssapi.Credentials(
            name=gssapi.Name(f"{principal}@{REALM}", gssapi.NameType.kerberos_principal),
            usage="initiate",
            store={"client_keytab": f"FILE:{self.folder / keytab}", "ccache": f"MEMORY:{self.folder} {principal}"},
        )
        server = gssapi.Name("HTTP@localhost", gssapi.NameType.hostbased_service)
        token = gssapi.SecurityContext(name=server, creds=credentials, usage="initiate").step()
        return {"authorization": f"Negotiate {base64.b64encode(token).decode()}"}
