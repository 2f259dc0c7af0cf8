"""`model.startFrom` in the chart: the master alone has it, so that its removal restarts no other pod, and may reach the other store."""

from typing import Any

from chart.policies import Peer, lets_out
from chart.rendering import Renderer
from chart.role_settings import files
from elastic_ctr.config.role_files import MasterFile

ELSEWHERE = Peer("elsewhere", {"app": "file-server"})


def test_the_master_alone_has_it(render: Renderer) -> None:
    with_it = files(render(model={"startFrom": {"version": 17}}))
    without = files(render())

    changed = {name for name in with_it if with_it[name] != without[name]}
    [master] = [with_it[name] for name in changed]
    assert isinstance(master, MasterFile)
    assert master.model.start_from is not None
    assert master.model.start_from.version == 17


def test_the_master_may_reach_the_other_store(render: Renderer) -> None:
    def reaches(model: dict[str, Any]) -> bool:
        rendered = render(model=model)
        master = Peer("ads", rendered.pod_of("master").labels)
        return lets_out(rendered.all("NetworkPolicy"), "ads", master, ELSEWHERE, 8123)

    assert reaches({"startFrom": {"store": "http://other:8123"}})
    assert not reaches({})


def test_a_store_in_a_folder_needs_a_volume_in_the_master_and_opens_no_port(render: Renderer) -> None:
    model = {"startFrom": {"store": "file:///models"}}
    mounted = {"extraVolumes": {"models": {"emptyDir": {}}}, "extraVolumeMounts": {"/models": {"name": "models"}}}

    told = render.refusal(model=model)

    assert (
        "model.startFrom.store file:///models is a folder of a machine, and the master has no volume for it: " in told
    )
    name = "ctr-master"
    [with_it], [without] = (
        [each for each in rendered.all("NetworkPolicy") if each.name == name]
        for rendered in (render(model=model, master=mounted), render(master=mounted))
    )
    assert with_it.raw["spec"]["egress"] == without.raw["spec"]["egress"]
