import json
from pathlib import Path

import numpy as np
import pytest

from cube.parts import write_parts
from elastic_ctr.cube.dictionary.table import Paths
from elastic_ctr.cube.server.holdings import Assignments, DoesNotFit, Holdings
from elastic_ctr.cube.server.lookup_counters import MAX_VERSIONS

KEYS = np.arange(1, 50, dtype=np.uint64)
SOMEWHERE = {0: Paths(Path("/a"))}


def test_assignments_come_back_from_json() -> None:
    assigned = Assignments().loaded(1, 9, 4, {0: Paths(Path("/a")), 3: Paths(Path("/b"), Path("/c"))})

    assert Assignments.from_json(assigned.to_json(Assignments()), Assignments()) == assigned


def test_the_json_since_earlier_assignments_has_only_the_versions_that_changed() -> None:
    before = Assignments().loaded(1, 9, 4, SOMEWHERE).loaded(2, 9, 4, SOMEWHERE).loaded(3, 9, 4, SOMEWHERE)
    after = before.loaded(4, 9, 4, SOMEWHERE).unloaded(1).loaded(2, 9, 4, {1: Paths(Path("/b"))})

    document = json.loads(json.dumps(after.to_json(before)))

    assert sorted(map(int, document["versions"])) == [2, 4]
    assert Assignments.from_json(document, before) == after
    with pytest.raises(KeyError):
        Assignments.from_json(document, before.unloaded(3))


def test_a_version_of_the_same_number_with_other_files_is_no_kept_one() -> None:
    before = Assignments().loaded(1, 9, 4, SOMEWHERE)
    after = before.unloaded(1).loaded(1, 9, 4, {0: Paths(Path("/b"))})

    assert Assignments.from_json(json.loads(json.dumps(after.to_json(before))), before) == after


def test_places_are_reused_and_never_shared() -> None:
    assigned = Assignments()
    for version in range(1, 5):
        assigned = assigned.loaded(version, 9, 4, SOMEWHERE)
    assigned = assigned.unloaded(2).loaded(9, 9, 4, SOMEWHERE)

    assert {version: own.place for version, own in assigned.versions.items()} == {1: 0, 3: 2, 4: 3, 9: 1}


def test_unloading_an_absent_version_or_partition_changes_nothing() -> None:
    assigned = Assignments().loaded(1, 9, 4, SOMEWHERE)

    assert assigned.unloaded(2) == assigned.unloaded(1, [3]) == assigned
    assert assigned.unloaded(1, [0]).by_version() == {}


def test_only_files_that_were_not_assigned_before_add_something() -> None:
    before = Assignments().loaded(1, 9, 4, SOMEWHERE).loaded(2, 9, 4, SOMEWHERE)

    for same_or_less in (before, before.unloaded(1), before.loaded(1, 9, 4, SOMEWHERE)):
        assert not same_or_less.adds_to(before)
    for more in (before.loaded(3, 9, 4, SOMEWHERE), before.loaded(2, 9, 4, {0: Paths(Path("/b"))})):
        assert more.unloaded(1).adds_to(before)


def test_versions_of_another_shape_or_too_many_do_not_fit() -> None:
    assigned = Assignments().loaded(1, 9, 4, SOMEWHERE)

    with pytest.raises(DoesNotFit, match="dim 8 over 4 partitions, version 1 that is held has dim 9 over 4"):
        assigned.loaded(2, 8, 4, SOMEWHERE)
    for version in range(2, MAX_VERSIONS + 1):
        assigned = assigned.loaded(version, 9, 4, SOMEWHERE)
    with pytest.raises(DoesNotFit, match="unload some"):
        assigned.loaded(10_000, 9, 4, SOMEWHERE)


def test_only_what_is_new_is_opened(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, KEYS, partitions=2)
    assigned = Assignments().loaded(1, 4, 2, {0: paths[0]})
    holdings = Holdings().changed(assigned)

    more = holdings.changed(assigned.loaded(1, 4, 2, {1: paths[1]}))

    assert more.tables[1].parts[0].full is holdings.tables[1].parts[0].full
    assert more.tables[1].complete
    assert more.changed(more.assigned).tables[1] is more.tables[1]
