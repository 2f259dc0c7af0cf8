"""Sigstore's policy-controller in the cluster, with the manifests of its own repository."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from cluster.kube import Kube, Object, eventually, name_of, rolled_out
from needs import needs

NAMESPACE = "cosign-system"
IMAGE = os.environ.get("ELASTIC_CTR_POLICY_CONTROLLER_IMAGE", "elastic-ctr-test/policy-controller:dev")
_MANIFESTS = Path(__file__).parents[2] / "build" / "tools" / "policy-controller" / "config"
_WEBHOOK = "policy.sigstore.dev"


@contextmanager
def policy_controller(kube: Kube, ca: Path) -> Iterator[None]:
    """While it is in the cluster, pods of namespaces that opt in are admitted by its policies. `ca`: the authority of the registry."""
    if not _MANIFESTS.exists():
        pytest.skip(needs("policy-controller", "tools/get policy-controller && make cluster-images kind-load"))
    objects = [
        each for file in sorted(_MANIFESTS.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text()) if each
    ]
    objects = [each for each in objects if each["kind"] != "Kustomization"]
    for each in objects:
        if each["kind"] == "Deployment":
            _as_here(each)
    certificate = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "registry-ca", "namespace": NAMESPACE},
        "data": {"ca.crt": ca.read_text()},
    }
    try:
        kube.namespace(NAMESPACE)
        kube.apply(certificate, *objects)
        eventually("the policy-controller decides on pods", lambda: _decides(kube), 180)
        yield
    finally:
        # The controller's part in the end of a policy; without it neither the policy nor its kind would go.
        kube.run("delete", "clusterimagepolicies", "--all", "--ignore-not-found", timeout=60)
        # The webhooks first: the API server asks them about policies that go.
        for each in sorted(objects, key=lambda one: not one["kind"].endswith("WebhookConfiguration")):
            if "namespace" not in each["metadata"]:
                kube.delete(each["kind"], name_of(each), wait=False)


def _as_here(deployment: Object) -> None:
    """The image of this machine, the registry's authority, and no look-up of sigstore's public keys, as the policy has a key of its own."""
    pod = deployment["spec"]["template"]["spec"]
    # It waits for all of its five minutes, and its namespace with it.
    pod["terminationGracePeriodSeconds"] = 5
    [container] = pod["containers"]
    container |= {"image": IMAGE, "args": ["--disable-tuf"]}
    container["env"].append({"name": "SSL_CERT_FILE", "value": "/etc/registry/ca.crt"})
    container["volumeMounts"].append({"name": "registry-ca", "mountPath": "/etc/registry"})
    pod["volumes"].append({"name": "registry-ca", "configMap": {"name": "registry-ca"}})


def _decides(kube: Kube) -> bool:
    """Without the rules that it writes, the API server would admit every pod."""
    deployment = kube.get("deployment", "webhook", NAMESPACE)
    if deployment is None or not rolled_out(deployment):
        return False
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        found = kube.get(kind, _WEBHOOK)
        if found is None or not all(
            each.get("rules") and each["clientConfig"].get("caBundle") for each in found["webhooks"]
        ):
            return False
    return True
