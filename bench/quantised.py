"""What `model.values` costs and saves: memory a key, lookups a second, and AUC on lines that were not trained.

    python -m bench.quantised [--quick] [--only AUC] [--data ../shared/data]

Memory and lookups are of parts of the same keys and values at dim 17, the kinds in turn; every answer is asserted to be what
`features.quantiser` says. For AUC one model is trained as it is, by the pipeline of `elastic-ctr local`; its own network then scores
held-out lines with the published values and with the stored ones: two trainings would differ by more than what is measured.
About three minutes on two busy cores. Avazu is left out where its file is not.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.cube_kernel import N, calling, kernel_of
from bench.method import FOLDER, Plan, Results, arguments, compare, median_rate, plan_of, show, summary
from bench.quality import Line, command, imported, lines_of, rows_of, served
from elastic_ctr.config.feature_document import FILE, read_features
from elastic_ctr.cube.builder.part import PartIdentity, build_full
from elastic_ctr.cube.dictionary.table import Paths, VersionTable
from elastic_ctr.features.quantiser import quantised
from elastic_ctr.formats.json_rows import cells_of_json
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.formats.value_kind import VALUE_KINDS, ValueKind
from elastic_ctr.operate.local.session import Session
from elastic_ctr.serving.batching.predictor import DenseNetwork
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import checked_file, published_versions, read_version
from elastic_ctr.training.model.evaluation import weighted_auc
from elastic_ctr.training.trainer.converter import ClickConversion, SampleKeys

DIM = 17
KEYS = 4_000_000
MEMORY: dict[ValueKind, float] = {"float16": 0.55, "int8": 0.40}
SPEED: dict[ValueKind, float] = {"int8": 1.0}
AUC_LOSS = 0.001
_ASKED = 2_000_000
_PRESET, _ROWS = "easy", 200_000


def memory_row(kind: ValueKind) -> str:
    return f"bytes a key, {kind} ÷ float32, dim {DIM}"


def kernel_row(kind: ValueKind) -> str:
    return f"kernel {kind} ÷ float32, dim {DIM}, uniform"


def auc_row(kind: ValueKind, data: str) -> str:
    return f"AUC loss by {kind}, {data}"


def measure_parts(plan: Plan, results: Results) -> None:
    count = 500_000 if plan.quick else KEYS
    random = np.random.default_rng(1)
    keys = np.unique(random.integers(1, 2**64 - 1, count, dtype=np.uint64))
    values = random.standard_normal((keys.size, DIM), dtype=np.float32)
    asked = random.integers(0, keys.size, (_ASKED // N, N))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        sizes: dict[ValueKind, float] = {}
        tables: dict[ValueKind, VersionTable] = {}
        for kind in VALUE_KINDS:
            identity = PartIdentity(1, 0, 1, DIM, values=kind)
            part = build_full([(keys, values)], Path(name) / f"{kind}.dict", identity)
            sizes[kind] = part.bytes / keys.size
            tables[kind] = VersionTable.open(1, DIM, 1, {0: Paths(part.path)}, verify=True)
            answered = kernel_of(tables[kind], N)(keys[asked[0]])
            assert answered.tobytes() == quantised(values[asked[0]], kind).tobytes(), kind
        for kind, goal in MEMORY.items():
            row = memory_row(kind)
            if plan.wants(row):
                note = f"{sizes[kind]:.1f} to {sizes['float32']:.1f} bytes of the part, {keys.size:,} keys"
                results.put(summary(row, [sizes[kind] / sizes["float32"]], goal, note=note, bound="at most"))
        for kind in MEMORY:
            row = kernel_row(kind)
            if plan.wants(row):
                ours, theirs = (
                    calling(kernel_of(table, N), keys[asked]) for table in (tables[kind], tables["float32"])
                )
                found = compare(row, ours, theirs, plan)
                rates = [median_rate(side) / 1e6 for side in (found.ours, found.theirs)]
                note = f"{rates[0]:.1f} to {rates[1]:.1f} M keys/s, {N} a call"
                results.put(summary(row, found.ratios(), SPEED.get(kind), note=note), found.details())


def sample_of(manifest: VersionManifest, folder: Path, held: list[Line]) -> SampleKeys:
    """Of lines, or of rows as JSON."""
    texts = [text for text, _, _ in held]
    if manifest.features is None:
        return ClickConversion(SlotList(manifest.slots), manifest.sparse_dim, 1 << 20).sample(texts)
    document = read_features((folder / FILE).read_bytes(), manifest.features)
    transformer = document.transformer()
    rows = transformer.transform(cells_of_json([text.encode() for text in texts], transformer.inputs))
    averaged = [slot in document.features.averaged for slot in transformer.slots]
    return SampleKeys.of(rows.keys, rows.lengths, rows.numbers, averaged)


def measure_auc(name: str, session: Session, held: list[Line], results: Results) -> None:
    """Of the last version of a session; it must be a base, which holds every key."""
    store = open_store(session.places.store)
    manifest = read_version(store, published_versions(store)[-1])
    assert manifest.kind == "base"
    with tempfile.TemporaryDirectory() as folder:
        blocks: list[Any] = []
        for entry in manifest.cube_files:
            with SequenceFileReader(checked_file(store, entry, Path(folder)), expected_records=entry.records) as reader:
                blocks.extend(reader)
        network = DenseNetwork(store.root / layout.model_folder(manifest.version), len(manifest.slots) * manifest.dim)  # type: ignore[attr-defined]
    keys, values = (np.concatenate(column) for column in zip(*blocks, strict=True))
    order = np.argsort(keys)
    keys, values = keys[order], values[order]
    sample = sample_of(manifest, store.root / layout.model_folder(manifest.version), held)  # type: ignore[attr-defined]
    at = np.minimum(np.searchsorted(keys, sample.keys), keys.size - 1)
    own = np.where((keys[at] == sample.keys)[:, None], values[at], np.float32(0))

    def auc_of(scores: NDArray[np.float32]) -> float:
        return weighted_auc(scores, [line[2] for line in held], [line[1] for line in held]) or 0.5

    exact = network.predict(sample.pooled(own))
    for kind in MEMORY:
        stored = network.predict(sample.pooled(quantised(own, kind)))
        changes = np.abs(stored - exact)
        note = (
            f"AUC {auc_of(exact):.5f} to {auc_of(stored):.5f} on {len(held):,} lines, {keys.size:,} keys; a score changes by "
            f"{changes.max():.1e} at most, {statistics.fmean(changes.tolist()):.1e} on average"
        )
        loss = auc_of(exact) - auc_of(stored)
        results.put(summary(auc_row(kind, name), [loss], AUC_LOSS, note=note, bound="at most"))
    network.close()


def measure_synthetic(plan: Plan, results: Results) -> None:
    rows = 40_000 if plan.quick else _ROWS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, seed, lines in (("train", "1", rows), ("held", "2", 50_000)):
            command(
                "synth", "--hours", "1", "--rows", str(lines), "--seed", seed, "--truth-seed", "1", "--preset", _PRESET,
                str(folder / part),
            )  # fmt: skip
        with served(folder, folder / "train", {"model": {"embeddingDim": DIM}}) as session:
            measure_auc("synthetic", session, lines_of(folder / "held"), results)


def measure_avazu(raw: Path, results: Results) -> None:
    header, *lines = raw.read_text().splitlines()
    order = np.random.default_rng(0).permutation(len(lines))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, chosen in (("train", order[len(lines) // 5 :]), ("held", order[: len(lines) // 5])):
            (folder / f"{part}.txt").write_text("\n".join([header, *(lines[i] for i in chosen)]) + "\n")
            imported("avazu", folder / f"{part}.txt", folder / part)
        with served(folder, folder / "train", {"model": {"embeddingDim": DIM}}) as session:
            measure_auc("Avazu", session, [line for line, _ in rows_of(folder / "held")], results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    given = parser.parse_args()
    plan = plan_of(given)
    results = Results(given.results, quick=plan.quick)
    avazu = given.data / "avazu" / "small3.train.csv"
    if any(plan.wants(name) for kind in MEMORY for name in (memory_row(kind), kernel_row(kind))):
        measure_parts(plan, results)
    if any(plan.wants(auc_row(kind, "synthetic")) for kind in MEMORY):
        measure_synthetic(plan, results)
    if any(plan.wants(auc_row(kind, "Avazu")) for kind in MEMORY):
        if avazu.exists():
            measure_avazu(avazu, results)
        else:
            print(f"{avazu} is not here: Avazu is left out")
    show(results.read())


if __name__ == "__main__":
    main()
