"""What NetworkPolicies allow, by the rules of networking.k8s.io/v1: who may open a connection to which port of whom."""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chart.rendering import Object

_NAMESPACE = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Peer:
    """Something with an address: a pod of a namespace, or, with no labels, a machine outside."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "10.244.0.1"
    ports: Mapping[str, int] = field(default_factory=dict)


def allowed(policies: Iterable[Object], namespace: str, source: Peer, target: Peer, port: int) -> bool:
    """Whether `source` may connect to `target` by TCP; the policies stand in `namespace`."""
    every = list(policies)
    return lets_out(every, namespace, source, target, port) and lets_in(every, namespace, source, target, port)


def lets_out(policies: Iterable[Object], namespace: str, source: Peer, target: Peer, port: int) -> bool:
    """What the policies of `source` alone say."""
    return _direction(list(policies), namespace, "Egress", source, target, target, port)


def lets_in(policies: Iterable[Object], namespace: str, source: Peer, target: Peer, port: int) -> bool:
    """What the policies of `target` alone say."""
    return _direction(list(policies), namespace, "Ingress", target, source, target, port)


def _direction(
    policies: list[Object], namespace: str, kind: str, pod: Peer, other: Peer, target: Peer, port: int
) -> bool:
    if pod.namespace != namespace:
        return True
    own = [
        each for each in policies if kind in each.spec["policyTypes"] and _matches(each.spec["podSelector"], pod.labels)
    ]
    side = "to" if kind == "Egress" else "from"
    rules = [rule for each in own for rule in each.spec.get(kind.lower(), [])]
    return not own or any(
        _peers(rule.get(side), namespace, other) and _ports(rule.get("ports"), target, port) for rule in rules
    )


def _peers(peers: list[dict[str, Any]] | None, namespace: str, other: Peer) -> bool:
    return not peers or any(_peer(each, namespace, other) for each in peers)


def _peer(peer: dict[str, Any], namespace: str, other: Peer) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        address = ipaddress.ip_address(other.address)
        return address in ipaddress.ip_network(block["cidr"]) and not any(
            address in ipaddress.ip_network(each) for each in block.get("except", [])
        )
    if not other.namespace:
        return False
    if "namespaceSelector" in peer:
        if not _matches(peer["namespaceSelector"], {_NAMESPACE: other.namespace}):
            return False
    elif other.namespace != namespace:
        return False
    return _matches(peer.get("podSelector", {}), other.labels)


def _ports(ports: list[dict[str, Any]] | None, target: Peer, port: int) -> bool:
    def one(each: dict[str, Any]) -> bool:
        if each.get("protocol", "TCP") != "TCP":
            return False
        first = target.ports.get(each["port"]) if isinstance(each.get("port"), str) else each.get("port")
        return first is None or int(first) <= port <= int(each.get("endPort", first))

    return not ports or any(one(each) for each in ports)


def _matches(selector: dict[str, Any], labels: Mapping[str, str]) -> bool:
    def one(expression: dict[str, Any]) -> bool:
        value = labels.get(expression["key"])
        match expression["operator"]:
            case "In":
                return value in expression["values"]
            case "NotIn":
                return value not in expression["values"]
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        raise AssertionError(expression)

    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        one(each) for each in selector.get("matchExpressions", [])
    )
