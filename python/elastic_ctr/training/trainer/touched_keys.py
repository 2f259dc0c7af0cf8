"""The touched keys of a task, which a stream's delta publishes without a walk through the table, and their shows and clicks, as
Paddle adds them to the rows.
"""

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.formats.record_arrays import record_arrays

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.float32]


def touched_keys(text: bytes, records: int, slots: int, *, numbers: bool) -> tuple[Keys, Counts]:
    """Return the sorted unique keys uint64 [n] of a converted text, without the padding key, and float32 [n, 2], the shows and clicks of
    the records that have them, counted for each occurrence of a key.

    Args:
        text: lines of the engine's input (features/record_text.py has the format).
        records: the number of lines.
        slots: the number of groups of keys in a line.
        numbers: True if a group of numbers precedes them.
    """
    import pyarrow as pa

    found = record_arrays(text, records, slots, numbers=numbers)
    keys_of_each = found.lengths.reshape(records, slots).sum(axis=1)
    # By a hash table: with frequent keys np.unique takes several times as long.
    encoded = pa.array(found.keys).dictionary_encode()
    unique, places = (each.to_numpy(zero_copy_only=False) for each in (encoded.dictionary, encoded.indices))
    added = [np.repeat(each, keys_of_each) for each in (found.shows, found.clicks)]
    counts = np.stack([np.bincount(places, each, len(unique)) for each in added], axis=1)
    order = np.argsort(unique)
    known = order[unique[order] != PADDING_KEY]
    return unique[known], counts[known].astype(np.float32)
