"""A real HDFS in the cluster, one NameNode and one DataNode in a pod, and the click logs put there."""

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cluster.kube import Kube, KubectlFailed, eventually

NAMESPACE = "elastic-ctr-hdfs"
FIRST_HOUR = "20200401/00"
_POD = "hdfs-0"
_HOST = f"{_POD}.hdfs.{NAMESPACE}.svc.cluster.local"
_HDFS = ("/opt/hdfs/hdfs", "--dir", "/data", "--bind", "0.0.0.0", "--host", _HOST)
# Through WebHDFS, because each command of FsShell starts a JVM.
_PUT = """
into=$(mktemp -d)
trap 'rm -rf $into' EXIT
tar -xf - -C $into
cd $into
for name in *; do
  datanode=$(curl -sf -X PUT -o /dev/null -w '%{{redirect_url}}' "{url}")
  curl -sf -X PUT -H Expect: -T $name "$datanode"
done
"""
_PORTS = {"namenode": {"rpc": 9000, "http": 9870}, "datanode": {"dn-http": 9864, "dn-data": 9865, "dn-ipc": 9866}}


class Hadoop:
    """The pod, and its file system as root of HDFS sees it."""

    def __init__(self, kube: Kube, image: str, node: str) -> None:
        self.kube = kube
        self._image = image
        self._node = node
        self.url = f"hdfs://{_HOST}:9000"

    def start(self) -> None:
        """Nothing to do where it runs already."""
        self.kube.namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
        self.kube.apply(_service(), _stateful_set(self._image, self._node))
        self.wait()

    def wait(self) -> None:
        """Until the NameNode is out of safe mode and the DataNode lives."""
        eventually("HDFS is usable", self._usable, 180, 1)

    def _usable(self) -> bool:
        return '"NumLiveDataNodes" : 1' in (seen := self._state()) and '"FSState" : "Operational"' in seen

    def _state(self) -> str:
        query = "http://localhost:9870/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        return self.kube.exec(NAMESPACE, _POD, "namenode", "curl", "-sf", "-m", "5", query, timeout=20)

    def exists(self, path: str) -> bool:
        """Raises KubectlFailed if HDFS answers anything but yes or no."""
        ask = f"curl -s -o /dev/null -w '%{{http_code}}' '{_webhdfs(path, 'GETFILESTATUS')}'"
        code = self.kube.exec(NAMESPACE, _POD, "namenode", "sh", "-c", ask)
        if code not in {"200", "404"}:
            raise KubectlFailed(f"the state of {path} in HDFS is not known: status {code}")
        return code == "200"

    def chmod(self, path: str, mode: str) -> None:
        change = f"curl -sf -X PUT '{_webhdfs(path, 'SETPERMISSION', permission=mode)}'"
        self.kube.exec(NAMESPACE, _POD, "namenode", "sh", "-c", change)

    def put(self, folder: Path, path: str) -> None:
        """The files below a folder to below a path; what is there already is replaced."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(folder, arcname=".")
        self.kube.exec(
            NAMESPACE, _POD, "namenode", "sh", "-ec", _PUT.format(url=_webhdfs(f"{path}/$name", "CREATE", overwrite="true")),
            stdin=packed.getvalue(),
        )  # fmt: skip

    def end(self, container: str) -> None:
        """One of the two daemons is told to end; Kubernetes starts it again in place."""
        self.kube.exec(NAMESPACE, _POD, container, "sh", "-c", "kill 1")


class ClickLogs:
    """Hours of synthetic clicks with one truth, below a path of HDFS."""

    def __init__(self, hadoop: Hadoop, path: str, work: Path) -> None:
        self.hadoop = hadoop
        self.path = path
        self._work = work

    def publish(self, hour: str, rows: int, *, files: int = 2, donefile: bool = True) -> int:
        """One hour, `YYYYMMDD/HH`; its donefile last. How many records it has. Nothing to do where it is there."""
        day, number = hour.split("/")
        # An earlier run, of other tests, may have had other lines in this hour.
        made = self._work / f"{rows}x{files}"
        folder = made / day / number
        if not folder.exists():
            out = made / f"made-{day}-{number}"
            # One truth for all hours, other lines in each.
            options = ["--hours", "1", "--rows", str(rows), "--start", hour, "--files-per-hour", str(files)]
            options += ["--truth-seed", "1", "--seed", str(int(day + number)), "--force", "--json"]
            command = [sys.executable, "-m", "elastic_ctr", "synth", *options, str(out)]
            subprocess.run(command, check=True, capture_output=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            (out / day / number).rename(folder)
        records = sum(file.read_bytes().count(b"\n") for file in folder.iterdir())
        target = f"{self.path}/{hour}"
        if self.hadoop.exists(f"{target}/donefile"):
            return records
        done = folder / "donefile"
        text = done.read_bytes() if done.exists() else b""
        done.unlink(missing_ok=True)
        self.hadoop.put(folder, target)
        done.write_bytes(text)
        if donefile:
            self.finish(hour)
        return records

    def publish_after(self, status: Mapping[str, Any], rows: int, *, files: int = 2) -> tuple[str, int]:
        """The hour that training waits for: its name, its records."""
        hour = hour_after(status)
        return hour, self.publish(hour, rows, files=files)

    def finish(self, hour: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "donefile").touch()
            self.hadoop.put(Path(folder), f"{self.path}/{hour}")


def hour_after(status: Mapping[str, Any]) -> str:
    """The hour after the last that is trained, `YYYYMMDD/HH`: the one that is waited for."""
    done = [each["pass"] for each in status["passes"] if each["state"] == "done"]
    if not done:
        return FIRST_HOUR
    last = datetime.strptime(done[-1], "%Y%m%d/%H").replace(tzinfo=timezone.utc)
    return (last + timedelta(hours=1)).strftime("%Y%m%d/%H")


def _webhdfs(path: str, operation: str, **query: str) -> str:
    """The NameNode's address of an operation, as the superuser."""
    asked = urlencode({"op": operation, "user.name": "root", **query})
    return f"http://localhost:9870/webhdfs/v1{path}?{asked}"


def _service() -> dict[str, object]:
    ports = [{"name": name, "port": port} for each in _PORTS.values() for name, port in each.items()]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "hdfs"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hdfs", "namespace": NAMESPACE}, "spec": spec}


def _stateful_set(image: str, node: str) -> dict[str, object]:
    containers = [
        {
            "name": daemon,
            "image": image,
            "command": [*_HDFS, daemon],
            "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
            "env": [{"name": "HADOOP_USER_NAME", "value": "root"}] if daemon == "namenode" else [],
            "resources": {"requests": {"cpu": "30m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        for daemon, ports in _PORTS.items()
    ]
    pod = {
        "metadata": {"labels": {"app": "hdfs"}},
        "spec": {
            # Whatever node is drained, it is not this one.
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": containers,
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }
    spec = {"serviceName": "hdfs", "replicas": 1, "selector": {"matchLabels": {"app": "hdfs"}}, "template": pod}
    metadata = {"name": "hdfs", "namespace": NAMESPACE}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
