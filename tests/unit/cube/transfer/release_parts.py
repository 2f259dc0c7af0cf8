"""Dictionaries and holds of the tests of the rules."""

from elastic_ctr.versions.holds import Hold
from elastic_ctr.versions.manifest import DictionaryManifest


def dictionary(version: int, dim: int = 2) -> DictionaryManifest:
    return DictionaryManifest(
        version=version, kind="full", full_version=version, base=version, parent=None, partitions=4, dim=dim, keys=0,
        files=(),
    )  # fmt: skip


def hold(*suspects: int, number: int = 1) -> Hold:
    return Hold(
        number=number, suspects=(suspects[0], suspects[-1]) if suspects else None, reason="AUC fell", held_at=1.0
    )
