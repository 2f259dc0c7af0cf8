"""What each role would load in its container: followed from mount to volume to ConfigMap, and loaded with its class."""

import yaml

from chart.rendering import Container, Pod, Rendered
from elastic_ctr.config.helm_yaml import Loader
from elastic_ctr.config.load import settings
from elastic_ctr.config.role_files import (
    CubeBuilderFile,
    CubeServerFile,
    CubeTransferFile,
    IntakeFile,
    MasterFile,
    PserverFile,
    RoleFile,
    ScoringFile,
    ServingFile,
    TrainerFile,
)

CLASSES: dict[str, type[RoleFile]] = {
    "master": MasterFile,
    "trainer": TrainerFile,
    "pserver": PserverFile,
    "cube-server": CubeServerFile,
    "cube-transfer": CubeTransferFile,
    "cube-builder": CubeBuilderFile,
    "intake": IntakeFile,
    "serving": ServingFile,
    "scoring": ScoringFile,
}
CONFIG = "/etc/elastic-ctr/config/config.yaml"


def config_text(rendered: Rendered, pod: Pod, container: Container) -> str:
    """The text of the file that a container finds at CONFIG, followed from mount to volume to ConfigMap."""
    path, mount = max((path, mount) for path, mount in container.mounts.items() if CONFIG.startswith(path))
    volume = pod.volumes[mount["name"]]
    source = volume.get("configMap") or next(
        each["configMap"] for each in volume["projected"]["sources"] if "configMap" in each
    )
    texts = rendered.one("ConfigMap", name=source["name"]).raw["data"]
    file = mount["subPath"] if path == CONFIG else CONFIG.removeprefix(path).lstrip("/")
    keys = {each["path"]: each["key"] for each in source.get("items", [])}
    return str(texts[keys.get(file, file)])


def files(rendered: Rendered) -> dict[str, RoleFile]:
    """The settings of each role, loaded as it loads them."""
    found = {}
    for pod in rendered.pods:
        for each in pod.containers:
            if each.args and each.args[0] in CLASSES:
                given = yaml.load(config_text(rendered, pod, each), Loader=Loader)
                found[each.args[0]] = settings(CLASSES[each.args[0]], given, f"{pod.owner}/{each.name}")
    return found
