"""Who may talk to whom: just the edges of docs/architecture.md, derived from the rendered policies."""

from collections.abc import Callable
from typing import Any

import pytest

from chart.cases import CLICKS_BY_HTTP, CLICKS_JOINED
from chart.edges import DOORS, EDGES, EDGES_OF_AN_INTAKE, FILES, INTAKE, METRICS
from chart.policies import Peer, allowed, lets_in, lets_out
from chart.rendering import Object, Rendered, Renderer, merged

Rule = Callable[[list[Object], str, Peer, Peer, int], bool]
OUTSIDER = Peer("elsewhere", {"app": "anything"})
PROMETHEUS = Peer("monitoring", {"app.kubernetes.io/name": "prometheus"})
DNS = Peer("kube-system", {"k8s-app": "kube-dns"}, ports={"dns-tcp": 53})


@pytest.fixture(params=["volcano", "none"], scope="module")
def rendered(request: pytest.FixtureRequest, render: Renderer) -> Rendered:
    return render(tracking={"enabled": True}, training={"scheduler": request.param})


def peers(rendered: Rendered) -> dict[str, Peer]:
    """Of each component, one pod; what `helm test` runs is a client."""
    return {
        pod.component: Peer(
            "ads", pod.labels, ports={name: port for each in pod.containers for name, port in each.ports.items()}
        )
        for pod in rendered.pods
    }


def ports_of(rendered: Rendered) -> dict[str, set[int]]:
    """Every port that a pod of the component opens."""
    return {name: set(peer.ports.values()) for name, peer in peers(rendered).items()}


def may(rendered: Rendered, source: Peer, target: Peer, port: int) -> bool:
    return allowed(rendered.all("NetworkPolicy"), "ads", source, target, port)


def open_edges(rendered: Rendered, by: Rule) -> set[tuple[str, str, int]]:
    """Source, target and port of what the policies let through."""
    known, policies = peers(rendered), rendered.all("NetworkPolicy")
    return {
        (source, target, port)
        for source in known
        for target, ports in ports_of(rendered).items()
        for port in ports
        if by(policies, "ads", known[source], known[target], port)
    }


def doors(rendered: Rendered, by: Rule) -> set[tuple[str, str, int]]:
    """Serving lets in whoever asks."""
    return {(source, "serving", port) for source in peers(rendered) for port in DOORS} if by is lets_in else set()


@pytest.mark.parametrize("by", [allowed, lets_out, lets_in])
def test_inside_a_release_just_the_edges_of_the_picture_are_open(rendered: Rendered, by: Rule) -> None:
    """Each edge stands on both its ends, so that neither opens more than the picture where the other is open anyway."""
    assert open_edges(rendered, by) == EDGES | doors(rendered, by)


@pytest.mark.parametrize("by", [allowed, lets_out, lets_in])
def test_an_intake_opens_its_own_edges_and_no_others(render: Renderer, by: Rule) -> None:
    rendered = render(tracking={"enabled": True}, **CLICKS_BY_HTTP)
    known = peers(rendered)

    assert open_edges(rendered, by) == EDGES | EDGES_OF_AN_INTAKE | doors(rendered, by)
    assert may(rendered, PROMETHEUS, known["intake"], INTAKE)
    assert not may(rendered, OUTSIDER, known["intake"], INTAKE)


def test_the_intake_lets_in_the_peers_that_the_values_name(render: Renderer) -> None:
    shop = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
    rendered = render(**merged(CLICKS_BY_HTTP, {"intake": {"networkPolicy": {"from": [shop]}}}))
    intake = peers(rendered)["intake"]

    assert may(rendered, Peer("shop", {"app": "page"}), intake, INTAKE)
    assert not may(rendered, OUTSIDER, intake, INTAKE)
    assert may(rendered, peers(rendered)["master"], intake, INTAKE)


def test_only_readers_of_the_stream_reach_the_intake_of_another_release_at_its_port(render: Renderer) -> None:
    rendered = render(data={**CLICKS_BY_HTTP["data"], "source": {"url": "intake://clicks.shop:9310"}})
    other = Peer("shop", {"app": "intake"}, ports={"intake": 9310})

    assert reaching(rendered, other, [9310, 8310]) == {"master": {9310}, "trainer": {9310}}


def test_the_components_are_those_of_the_picture(rendered: Rendered) -> None:
    # The check of the values reaches nothing, and is reached by nothing.
    assert peers(rendered).keys() - {"check-values"} == {
        each for source, target, _ in EDGES for each in (source, target)
    }


def test_a_port_that_no_policy_opens_is_closed(rendered: Rendered) -> None:
    known = peers(rendered)

    for source in known:
        for target in known:
            assert not may(rendered, known[source], known[target], 22)


def test_predictions_are_open_to_all_and_nothing_else_is(rendered: Rendered) -> None:
    outside = Peer(address="192.0.2.7")
    for source in (OUTSIDER, outside):
        found = {
            (target, port)
            for target, ports in ports_of(rendered).items()
            for port in ports
            if may(rendered, source, peers(rendered)[target], port)
        }
        assert found == {("serving", port) for port in DOORS}


def test_the_ports_of_serving_may_be_closed_to_all_but_some(render: Renderer) -> None:
    shop = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
    rendered = render(serving={"networkPolicy": {"from": [shop]}})
    serving = peers(rendered)["serving"]

    for door in DOORS:
        assert may(rendered, Peer("shop", {"app": "page"}), serving, door)
        assert not may(rendered, OUTSIDER, serving, door)
        assert may(rendered, peers(rendered)["client"], serving, door)


def test_a_port_of_serving_that_is_off_is_in_no_pod_service_or_policy(render: Renderer) -> None:
    rendered = render(serving={"config": {"grpcPort": 0}})
    serving = peers(rendered)["serving"]
    service = rendered.one("Service", component="serving")

    assert set(serving.ports) == {"predict", "admin"}
    assert [(each["name"], each["port"]) for each in service.spec["ports"]] == [("predict", 8400)]
    assert [port for port in (8400, 8402) if may(rendered, OUTSIDER, serving, port)] == [8400]


def test_prometheus_reaches_the_metrics_and_nothing_else(rendered: Rendered) -> None:
    found = {
        (target, port)
        for target, ports in ports_of(rendered).items()
        for port in ports
        if may(rendered, PROMETHEUS, peers(rendered)[target], port)
    }

    assert found == METRICS | {("serving", port) for port in DOORS}


def test_every_pod_reaches_dns(rendered: Rendered) -> None:
    for name, peer in peers(rendered).items():
        assert may(rendered, peer, DNS, 53), name
        assert not may(rendered, peer, DNS, 9153), name


def test_dns_is_open_by_udp_and_by_tcp(rendered: Rendered) -> None:
    protocols = {
        port["protocol"]
        for each in rendered.all("NetworkPolicy")
        for rule in each.spec.get("egress", [])
        for port in rule.get("ports", [])
        if port.get("port") == 53
    }

    assert protocols == {"UDP", "TCP"}


def reaching(rendered: Rendered, outside: Peer, ports: list[int]) -> dict[str, set[int]]:
    found = {
        name: {port for port in ports if may(rendered, peer, outside, port)} for name, peer in peers(rendered).items()
    }
    return {name: ports for name, ports in found.items() if ports}


HADOOP = Peer(address="198.51.100.9")


# Of click logs.
READERS = ("master", "trainer", "scoring")


def test_only_readers_of_logs_reach_hadoop(rendered: Rendered) -> None:
    ports = {9870, 9864, 9871, 9865, 14000}

    assert reaching(rendered, HADOOP, [*ports, 9000, 443, 22]) == dict.fromkeys(READERS, ports)


def test_hadoop_is_where_the_values_say(render: Renderer) -> None:
    rendered = render(networkPolicy={"hdfs": {"cidrs": ["198.51.100.0/24"], "ports": [9870]}})

    assert reaching(rendered, HADOOP, [9870, 9864]) == {name: {9870} for name in READERS}
    assert reaching(rendered, Peer(address="198.51.101.9"), [9870, 9864]) == {}


def test_only_readers_of_a_topic_reach_its_brokers_at_the_ports_that_are_named(render: Renderer) -> None:
    rendered = render(
        data={"source": {"url": "kafka://one:9094,two:9095/clicks"}, "start": "earliest", "end": None},
        networkPolicy={"kafka": {"cidrs": ["198.51.100.0/24"]}},
    )

    assert reaching(rendered, HADOOP, [9092, 9094, 9095, 9870, 22]) == {
        name: {9092, 9094, 9095} for name in ("master", "trainer")
    }
    assert reaching(rendered, Peer(address="198.51.101.9"), [9092, 9094]) == {}


def test_a_topic_whose_clicks_are_joined_is_reached_by_the_intake_alone(render: Renderer) -> None:
    rendered = render(below=merged(CLICKS_JOINED, {"networkPolicy": {"kafka": {"cidrs": ["198.51.100.0/24"]}}}))
    found = peers(rendered)

    assert reaching(rendered, HADOOP, [9092, 9094, 9095, 22]) == {"intake": {9092, 9094, 9095}}
    assert all(may(rendered, found[name], found["intake"], 8310) for name in ("master", "trainer"))


def test_the_port_that_a_url_names_is_open(render: Renderer) -> None:
    logs = render(data={"source": {"url": "webhdfs://namenode:50070"}})
    store = render(store={"config": {"url": "webhdfs://namenode:50070/store"}}, fileServer={"enabled": False})
    files = render(store={"config": {"url": "http://files.other:9999/"}}, fileServer={"enabled": False})

    assert reaching(logs, HADOOP, [50070, 9870]) == {name: {50070, 9870} for name in READERS}
    assert reaching(store, HADOOP, [50070]) == {name: {50070} for name in WRITERS}
    assert reaching(files, HADOOP, [9999]) == {name: {9999} for name in WRITERS}


def test_the_groups_of_an_address_of_ipv6_are_no_ports(render: Renderer) -> None:
    rendered = render(store={"config": {"url": "http://[fd00:0:0:9998::1]:9999/"}}, fileServer={"enabled": False})

    assert reaching(rendered, HADOOP, [0, 1, 9998, 9999]) == {name: {9999} for name in WRITERS}


def test_a_client_is_let_out_to_what_there_is_and_nothing_else(render: Renderer) -> None:
    off = {"enabled": False}
    rendered = render(cube=off, serving=off, cubeTransfer=off)

    [client] = [each for each in rendered.all("NetworkPolicy") if each.name == "ctr-client"]
    ports = {port["port"] for rule in client.spec["egress"] for port in rule["ports"]}
    assert ports == {8701}


def test_no_pod_reaches_hadoop_where_logs_are_files(render: Renderer) -> None:
    rendered = render(
        data={"source": {"url": "file:///data"}}, dataVolume={"existingClaim": "logs", "mountPath": "/data"}
    )

    assert reaching(rendered, HADOOP, [9870]) == {}


WRITERS = {"master", "trainer", "pserver", "cube", "cube-transfer", "serving", "scoring"}


def test_a_store_in_hadoop_is_reached_by_every_component_that_uses_it(render: Renderer) -> None:
    rendered = render(store={"config": {"url": "hdfs://namenode:9000"}}, fileServer={"enabled": False})

    assert reaching(rendered, HADOOP, [9870]).keys() == WRITERS


def test_a_store_elsewhere_is_reached_by_every_component_that_uses_it(render: Renderer) -> None:
    rendered = render(
        store={"config": {"url": "http://files.other:8080"}},
        fileServer={"enabled": False},
        networkPolicy={"store": {"cidrs": ["203.0.113.0/24"], "ports": [8080]}},
    )

    assert reaching(rendered, Peer(address="203.0.113.5"), [8080, 80]) == {name: {8080} for name in WRITERS}


def test_another_release_reaches_nothing_but_predictions(render: Renderer) -> None:
    rendered, other = render(), render(release="second")
    both = [*rendered.all("NetworkPolicy"), *other.all("NetworkPolicy")]
    found = {
        (source.component, target, port)
        for source in other.pods
        for target, ports in ports_of(rendered).items()
        for port in ports
        if allowed(both, "ads", Peer("ads", source.labels), peers(rendered)[target], port)
    }

    # Whoever may ask for predictions at all may ask both: the doors are open to everybody.
    assert found <= {("client", "serving", port) for port in DOORS}


def test_peers_that_the_values_name_are_clients(render: Renderer) -> None:
    ops: dict[str, Any] = {"podSelector": {"matchLabels": {"team": "ops"}}}
    rendered = render(networkPolicy={"clients": [ops]})
    found = {
        (target, port)
        for target, ports in ports_of(rendered).items()
        for port in ports
        if may(rendered, Peer("ads", {"team": "ops"}), peers(rendered)[target], port)
    }

    assert found == {(target, port) for source, target, port in EDGES if source == "client"}


def test_a_file_server_behind_a_load_balancer_lets_in_the_clients_that_the_values_name(render: Renderer) -> None:
    ops: dict[str, Any] = {"podSelector": {"matchLabels": {"team": "ops"}}}
    rendered = render(networkPolicy={"clients": [ops]}, fileServer={"service": {"type": "LoadBalancer"}})
    file_server = peers(rendered)["file-server"]

    assert may(rendered, Peer("ads", {"team": "ops"}), file_server, FILES)
    assert not may(rendered, OUTSIDER, file_server, FILES)


def test_without_policies_nothing_is_closed(render: Renderer) -> None:
    assert render(networkPolicy={"enabled": False}).all("NetworkPolicy") == []


def test_the_policies_follow_the_ports_of_the_program(render: Renderer) -> None:
    rendered = render(
        pserver={"config": {"port": 19000, "adminPort": 18999}},
        cube={"config": {"port": 17000}},
        master={"config": {"port": 16000}},
        fileServer={"service": {"port": 15000}},
    )
    known = peers(rendered)

    assert [port for port in range(18995, 19020) if may(rendered, known["trainer"], known["pserver"], port)] == [19000]
    assert may(rendered, known["serving"], known["cube"], 17000)
    assert may(rendered, known["trainer"], known["master"], 16000)
    assert may(rendered, known["trainer"], known["file-server"], 15000)
    assert not may(rendered, known["trainer"], known["master"], 8700)
