"""Whether the cube answers the live version whole, asked as a reader would: at the holders that are named for it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from elastic_ctr.cli.checked import CheckFailed
from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.cube.client.connection import CubeUnavailable, VersionNotHeld
from elastic_ctr.cube.release import Holder, ReleaseDocument
from elastic_ctr.features.keys import PADDING_KEY
from elastic_ctr.local.endpoints import EndpointUnavailable, ask


class HolderChecked(NamedTuple):
    """What a cube-server answered; `rows` are values and miss of one key of each partition, by partition."""

    address: str
    draining: bool
    partitions: int
    dim: int
    rows: dict[int, tuple[tuple[float, ...], bool]]


class CubeChecked(NamedTuple):
    """All holders of the live version."""

    transfer: str
    version: int
    holders: list[HolderChecked]

    @property
    def found(self) -> int:
        return sum(not missing for each in self.holders for _, missing in each.rows.values())

    @property
    def asked(self) -> int:
        return sum(len(each.rows) for each in self.holders)

    def sentence(self) -> str:
        first = self.holders[0]
        return (
            f"version {self.version} is answered whole: {first.partitions} partitions of {first.dim} floats a key by "
            f"{len(self.holders)} cube-servers; of {self.asked} keys made up, {self.found} are known"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "transfer": self.transfer,
            "version": self.version,
            "partitions": self.holders[0].partitions,
            "dim": self.holders[0].dim,
            "keysAsked": self.asked,
            "keysFound": self.found,
            "holders": [
                {"address": each.address, "partitions": len(each.rows), "draining": each.draining}
                for each in self.holders
            ],
        }


def verify_cube(transfer: str) -> CubeChecked:
    """Raises CheckFailed."""
    try:
        document = ReleaseDocument.model_validate(ask(f"http://{transfer}/release"))
    except EndpointUnavailable as closed:
        raise CheckFailed(f"cube-transfer: {closed}") from closed
    except ValidationError as strange:
        raise CheckFailed(f"http://{transfer}/release is no release document; is cube-transfer there?") from strange
    live = document.live
    if live is None:
        raise CheckFailed(f"no version is live yet at cube-transfer {transfer}")
    named = document.holders.get(live, {})
    if not named:
        raise CheckFailed(f"no cube-server holds the live version {live}", may_pass=True)
    checked = [_ask_holder(address, holder, live) for address, holder in named.items()]
    _agree(checked, live)
    _whole(checked, live)
    return CubeChecked(transfer, live, checked)


def _ask_holder(address: str, holder: Holder, version: int) -> HolderChecked:
    """Raises CheckFailed."""
    numbers = sorted(set(holder.partitions))
    try:
        with BlockingCubeClient([address], busy_poll=False) as client:
            partitions, dim = client.partitions, client.dim
            # One key of each partition, none of them the padding key.
            keys = np.array([PADDING_KEY, *(number + partitions for number in numbers)], np.uint64)
            values, missing = client.lookup(version, keys)
    except (CubeUnavailable, VersionNotHeld) as failed:
        raise CheckFailed(f"the holder {address} of version {version}: {failed}", may_pass=True) from failed
    where = f"{address} answers version {version} wrong"
    if values.shape != (keys.size, dim) or missing.shape != (keys.size,):
        raise CheckFailed(f"{where}: values of shape {values.shape} for {keys.size} keys of {dim} floats")
    if missing[0] or values[0].any():
        raise CheckFailed(f"{where}: the padding key {PADDING_KEY} is not known with zeros")
    if not np.isfinite(values).all():
        raise CheckFailed(f"{where}: some values are no finite numbers")
    if values[missing].any():
        raise CheckFailed(f"{where}: some keys are missing and have values")
    rows = zip(values[1:].tolist(), missing[1:].tolist(), strict=True)
    answers = {number: (tuple(row), absent) for number, (row, absent) in zip(numbers, rows, strict=True)}
    return HolderChecked(address, holder.draining, partitions, dim, answers)


def _agree(checked: Iterable[HolderChecked], version: int) -> None:
    """Raises CheckFailed unless all have one form, and copies of a partition one content."""
    first: HolderChecked | None = None
    seen: dict[int, HolderChecked] = {}
    for each in checked:
        first = first or each
        if (each.partitions, each.dim) != (first.partitions, first.dim):
            raise CheckFailed(
                f"holders of version {version} differ: {first.address} has {first.partitions} partitions of {first.dim} "
                f"floats, {each.address} {each.partitions} of {each.dim}"
            )
        for number, answer in each.rows.items():
            other = seen.setdefault(number, each)
            if other.rows[number] != answer:
                raise CheckFailed(
                    f"{other.address} and {each.address} answer partition {number} of version {version} differently"
                )


def _whole(checked: list[HolderChecked], version: int) -> None:
    """Raises CheckFailed unless every partition is held."""
    held = {number for each in checked for number in each.rows}
    lacking = sorted(set(range(checked[0].partitions)) - held)
    if lacking:
        shown = ", ".join(map(str, lacking[:8])) + (", …" if len(lacking) > 8 else "")
        raise CheckFailed(
            f"{len(lacking)} of {checked[0].partitions} partitions of version {version} have no holder: {shown}",
            may_pass=True,
        )
