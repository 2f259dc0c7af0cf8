"""The Secret with keytab and krb5.conf, in the pods that read HDFS or write there, and the way to the KDC."""

from typing import Any

from chart.rendering import EXAMPLES, Rendered, Renderer, read

[EXAMPLE] = [file for file in EXAMPLES if file.stem == "secured-hdfs"]
USERS = {"master", "trainer", "pserver", "cube", "cube-transfer", "serving", "scoring"}
READERS = {"master", "trainer", "scoring"}
FOLDER = "/etc/elastic-ctr/kerberos"
# The source alone wants Kerberos; versions are in the release's own file-server.
OF_SOURCE: dict[str, Any] = {
    "store": {"config": {"url": None, "user": "root", "keytab": None}},
    "fileServer": {"enabled": True},
}


def having(rendered: Rendered) -> set[str]:
    return {
        pod.component
        for pod in rendered.pods
        if {"name": "kerberos", "secret": {"secretName": "ctr-kerberos"}} in pod.volumes.values()
    }


def test_every_role_that_uses_hdfs_has_it_and_finds_krb5_conf_in_it(render: Renderer) -> None:
    for scheduler in ("volcano", "none"):
        rendered = render(below=read(EXAMPLE), training={"scheduler": scheduler}, tracking={"enabled": True})

        assert having(rendered) == USERS
        for component in USERS:
            for container in rendered.pod_of(component).containers:
                assert container.mounts[FOLDER] == {"name": "kerberos", "mountPath": FOLDER, "readOnly": True}
                assert container.env["KRB5_CONFIG"] == f"{FOLDER}/krb5.conf"


def test_a_source_with_kerberos_gives_it_to_readers_alone(render: Renderer) -> None:
    assert having(render(below=read(EXAMPLE), **OF_SOURCE)) == READERS


def test_only_those_that_have_it_reach_the_kdc_by_udp_and_tcp(render: Renderer) -> None:
    for values, components in (({}, USERS), (OF_SOURCE, READERS)):
        rendered = render(below=read(EXAMPLE), **values)
        ways = {
            policy.spec["podSelector"]["matchLabels"].get("app.kubernetes.io/component"): [
                (port["protocol"], [each["ipBlock"]["cidr"] for each in rule["to"]])
                for rule in policy.spec.get("egress", [])
                for port in rule.get("ports", [])
                if port["port"] == 88
            ]
            for policy in rendered.all("NetworkPolicy")
        }

        cidrs = ["10.20.0.10/32", "10.20.0.11/32"]
        both = [("UDP", cidrs), ("TCP", cidrs)]
        assert {component: way for component, way in ways.items() if way} == dict.fromkeys(components, both)
