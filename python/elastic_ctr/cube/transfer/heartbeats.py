"""The last reports of pods. The report of a silent pod expires."""

import ipaddress
from typing import Generic, TypeVar

from elastic_ctr.cube.placement import shard_of_pod
from elastic_ctr.cube.release import AgentReport, ReaderReport

R = TypeVar("R", AgentReport, ReaderReport)


class Pods(Generic[R]):
    """The last report of each pod, valid for `seconds` after its arrival."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._heard: dict[str, tuple[R, float]] = {}

    def record(self, report: R, now: float) -> bool:
        """Return True if the report differs from the pod's last one."""
        before = self._heard.get(report.pod)
        same = before is not None and before[0] == report
        # An equal report keeps the former object, so that comparing lists of unchanged reports compares identities.
        self._heard[report.pod] = before[0] if before is not None and same else report, now
        return not same

    def expire(self, now: float) -> list[str]:
        """Drop the reports of pods that have been silent for too long. Return these pods."""
        silent = [pod for pod, (_, at) in self._heard.items() if now - at > self._seconds]
        for pod in silent:
            del self._heard[pod]
        return silent

    def extend_deadlines(self, seconds: float) -> None:
        """Keep reports longer by the time in which this process stood still and read none."""
        self._heard = {pod: (report, at + seconds) for pod, (report, at) in self._heard.items()}

    @property
    def reports(self) -> list[R]:
        return [report for report, _ in self._heard.values()]

    def heard(self) -> list[tuple[R, float]]:
        """Return the reports in the order of pods, with the times of their arrival."""
        return [self._heard[pod] for pod in sorted(self._heard)]


def may_be_cube_pod(address: str, domain: str | None) -> bool:
    """True if the host of an address belongs to the domain, or without a domain is a loopback address."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        return False
    if domain is not None:
        return host.lower().endswith("." + domain.lower().strip("."))
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def complaint_about(report: AgentReport, domain: str | None) -> str | None:
    """Return the reason to refuse a report, or None."""
    if not may_be_cube_pod(report.address, domain):
        return f"address: {report.address!r} is not one that cube pods have here; is the agent of another cluster?"
    try:
        shard = shard_of_pod(report.pod)
    except ValueError as wrong:
        return f"pod: {wrong}"
    if shard != report.shard:
        return f"shard: pod {report.pod!r} is of shard {shard}, not {report.shard}"
    return None
