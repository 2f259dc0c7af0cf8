"""Probabilities of instances by one version, computed as in serving, from locally mapped parts. Only one thread may use a scorer."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elastic_ctr.cube.dictionary.table import VersionTable
from elastic_ctr.jobs.scoring.dumps import Dump, dump_names, dumped
from elastic_ctr.jobs.scoring.records import Texts
from elastic_ctr.jobs.scoring.version import VersionFiles
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.pooling import NOT_AVERAGED, Floats, pooled, unique_keys
from elastic_ctr.serving.batching.predictor import DenseNetwork
from elastic_ctr.serving.batching.schema import schema_of

# Limits of one call of the network; each row and feasign takes keys and floats in memory.
_MOST_ROWS = 2048
_MOST_FEASIGNS = 1 << 20


class Scorer:
    """Scores with one version. The constructor raises NetworkUnusable, DictionaryDamaged, PartsDoNotFit, FeaturesDamaged, OSError."""

    def __init__(self, files: VersionFiles) -> None:
        manifest = files.manifest
        self.schema = schema_of(manifest, files.folder)
        self._manifest = manifest
        self._table = VersionTable.open(manifest.version, manifest.dim, manifest.partitions, files.parts)
        averaged = np.array([slot in manifest.averaged for slot in manifest.slots], np.bool_)
        self._averaged: npt.NDArray[np.bool_] = averaged if averaged.any() else NOT_AVERAGED
        self._network = DenseNetwork(files.folder, len(manifest.slots) * manifest.dim, len(manifest.numbers))

    def probabilities(self, instances: Instances) -> Floats:
        """Return probabilities f32 [rows]. Raises NetworkUnusable."""
        if not instances.rows:
            return np.empty(0, np.float32)
        parts = instances.parts(_MOST_ROWS, _MOST_FEASIGNS)
        return np.concatenate([self._network.predict(self._pooled(part), part.numbers) for part in parts])

    def _pooled(self, instances: Instances) -> Floats:
        unique = unique_keys(instances, self._manifest.sparse_dim)
        values, _ = self._table.lookup(unique.keys)
        return pooled(unique, values, instances, self._manifest.dim, self._averaged)

    def dumped(self, instances: Instances, dumps: Sequence[Dump]) -> Texts:
        """Return the columns of `dump_names` for each instance."""
        if not dumps or not instances.rows:
            return tuple([] for _ in dump_names(dumps, self.schema))
        return dumped(dumps, instances, self._manifest.sparse_dim, self._pooled(instances))
