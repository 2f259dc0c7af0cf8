"""A volume with click logs, for releases that read `file:///data`."""

from cluster.conftest import CUBE_IMAGE
from cluster.kube import Kube, eventually


def write_clicks(kube: Kube, namespace: str, hours: int, rows: int, preset: str) -> None:
    """The claim `clicks`, which `dataVolume.existingClaim` may name, with synthetic hours from 20200401/00 on."""
    metadata = {"name": "clicks", "namespace": namespace}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    may: dict[str, object] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    # synth writes into a folder that is absent or empty, and the root of a volume may have lost+found.
    synth = f"elastic-ctr synth --hours {hours} --rows {rows} --preset {preset} /data/made && mv /data/made/* /data/"
    container = {
        "name": "synth",
        "image": CUBE_IMAGE,
        "command": ["sh", "-c", synth],
        "securityContext": may,
        "volumeMounts": [{"name": "clicks", "mountPath": "/data"}],
    }
    pod = {
        "securityContext": {"runAsNonRoot": True, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "clicks", "persistentVolumeClaim": {"claimName": "clicks"}}],
    }
    kube.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod},
    )

    def written() -> bool:
        found = kube.get("pod", "clicks", namespace)
        return found is not None and found["status"]["phase"] == "Succeeded"

    eventually("the hours are written", written, 180)
    kube.delete("pod", "clicks", namespace)
