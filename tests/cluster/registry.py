"""A registry of images on this machine that kind's nodes reach, with TLS of an authority made for a test."""

import json
import os
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import httpx
import yaml

from certificates import Authority
from cluster.kube import eventually
from needs import program
from ports import free_port


@dataclass(frozen=True)
class Registry:
    """`address`: host and port. `ca`: the file with the authority's certificate, for SSL_CERT_FILE."""

    address: str
    ca: Path


@contextmanager
def registry(folder: Path, nodes: Sequence[str]) -> Iterator[Registry]:
    """The registry of distribution, with its files in `folder`. The nodes trust it while it runs."""
    host = _gateway()
    port = free_port()
    made = Authority(folder / "authority").folder(folder / "tls", address=host)
    settings = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {
            "addr": f"{host}:{port}",
            "tls": {"certificate": str(made / "tls.crt"), "key": str(made / "tls.key")},
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    found = Registry(f"{host}:{port}", made / "ca.crt")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [program("registry"), "serve", str(folder / "config.yaml")],
            env=os.environ | {"OTEL_TRACES_EXPORTER": "none"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually("the registry answers", lambda: _answers(found), 30)
        for node in nodes:
            _trust(node, found)
        yield found
    finally:
        for node in nodes:
            subprocess.run(["docker", "exec", node, "rm", "-rf", _settings(found)], check=False)
        server.terminate()
        server.wait()


def _gateway() -> str:
    """The address of this machine in the network of kind's nodes."""
    text = subprocess.run(["docker", "network", "inspect", "kind"], check=True, capture_output=True, text=True).stdout
    [network] = json.loads(text)
    addresses = [each["Gateway"] for each in network["IPAM"]["Config"] if "Gateway" in each]
    return next(str(each) for each in addresses if ip_address(each).version == 4)


def _answers(found: Registry) -> bool:
    trusted = ssl.create_default_context(cafile=found.ca)
    try:
        return httpx.get(f"https://{found.address}/v2/", verify=trusted, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _settings(found: Registry) -> str:
    """The folder in which containerd looks for this registry's settings, each time that it pulls."""
    return f"/etc/containerd/certs.d/{found.address}"


def _trust(node: str, found: Registry) -> None:
    url, place = f"https://{found.address}", _settings(found)
    files = {
        "hosts.toml": f'server = "{url}"\n[host."{url}"]\nca = "{place}/ca.crt"\n',
        "ca.crt": found.ca.read_text(),
    }
    for name, content in files.items():
        write = ["sh", "-c", f"mkdir -p {place} && cat >{place}/{name}"]
        subprocess.run(["docker", "exec", "-i", node, *write], input=content, text=True, check=True)
