from pathlib import Path

import numpy as np

from cube.parts import write_parts
from elastic_ctr.cube.server.lookup_server import map_parts

KEYS = np.arange(1, 50, dtype=np.uint64)


def test_files_that_are_mapped_are_not_mapped_again_unless_they_were_replaced(tmp_path: Path) -> None:
    paths = write_parts(tmp_path / "held", KEYS, partitions=2)
    mapped = {part.path: part for part in map_parts(2, 4, paths, {})}
    others = write_parts(tmp_path / "others", KEYS[:30], partitions=2, version=2)
    others[1].full.replace(paths[1].full)

    again = {part.path: part for part in map_parts(2, 4, paths, mapped)}

    assert again.keys() == mapped.keys() == {paths[0].full, paths[1].full}
    assert again[paths[0].full] is mapped[paths[0].full]
    assert (mapped[paths[1].full].header.version, again[paths[1].full].header.version) == (1, 2)
