"""The paths of all published files in the store. No other module builds them."""

VERSIONS = "output/versions"
CUBE = "output/ctr_cube"
MODELS = "output/ctr_model"
DICTIONARIES = "output/ctr_dict"
DONEFILES = "output/ctr_cube/donefile"
REFUSED = "output/refused"
HOLDS = "output/holds"
STATISTICS = "output/statistics"
# The release document of a backup. A cube-transfer without a state takes it over, and deletes it.
RESTORED = "output/restored.json"
CHECKPOINTS = "checkpoints"
SCORES = "scores"

# The files of a version's dense network. A checkpoint copied by `model.startFrom` may have them in the folder below.
NETWORK = ("network.pdmodel", "network.pdiparams")
NETWORK_FOLDER = "network"
# Serving keeps the manifest of a version beside them.
MANIFEST = "manifest.json"

BASE_DONEFILE = f"{DONEFILES}/base.txt"
PATCH_DONEFILE = f"{DONEFILES}/patch.txt"


VERSION_DIGITS = 18


def is_version(name: str) -> bool:
    """True if a file or folder name is a version's id. Files of other names belong to other systems."""
    return name.isascii() and name.isdigit() and len(name) <= VERSION_DIGITS and str(int(name)) == name != "0"


def scores_folder(job: str) -> str:
    """Return the default folder of a scoring Job in the store."""
    return f"{SCORES}/{job}"


def refusal(version: int) -> str:
    """Return the path where cube-transfer writes that a version is refused, and the reason."""
    return f"{REFUSED}/{version}.json"


def hold(number: int) -> str:
    """Return the path where the master writes that it publishes no further version, and the reason."""
    return f"{HOLDS}/{number}.json"


def resumption(number: int) -> str:
    """Return the path of the file with which cube-transfer resumes publishing."""
    return f"{HOLDS}/{number}.resumed"


def statistics_file(digest: str) -> str:
    """Return the path of a statistics.json by its SHA-256: the column statistics that a model's features use."""
    return f"{STATISTICS}/{digest}.json"


def version_manifest(version: int) -> str:
    """Return the path of the manifest whose appearance commits a version."""
    return f"{VERSIONS}/{version}.json"


def cube_folder(version: int, kind: str) -> str:
    """Return the folder of a version's SequenceFiles, which is `input` in a donefile; `kind` is `base` or `delta`."""
    return f"{CUBE}/{version}/{kind}"


def cube_file(version: int, kind: str, partition: int, partitions: int) -> str:
    return f"{cube_folder(version, kind)}/feature-{partition:05d}-of-{partitions:05d}.seq"


def counts_file(version: int) -> str:
    """Return the path of the shows and clicks that a delta by key adds to the rows of its keys."""
    return f"{CUBE}/{version}/counts.seq"


def network_files(version: int) -> tuple[str, ...]:
    """Return the paths of a version's dense network."""
    return tuple(f"{model_folder(version)}/{name}" for name in NETWORK)


def model_folder(version: int) -> str:
    """Return the folder of a version's dense network and sample lines."""
    return f"{MODELS}/{version}"


def sample_file(version: int) -> str:
    return f"{model_folder(version)}/sample.jsonl"


def dictionary_folder(version: int) -> str:
    return f"{DICTIONARIES}/{version}"


def dictionary_part(version: int, partition: int) -> str:
    return f"{dictionary_folder(version)}/part-{partition:05d}.dict"


def dictionary_overlay(version: int) -> str:
    """Return the path of a version's overlay, if one file has the keys of all partitions."""
    return f"{dictionary_folder(version)}/overlay.dict"


def dictionary_fold(version: int) -> str:
    """Return the path of the manifest of the full parts that a published overlay was later merged into."""
    return f"{dictionary_folder(version)}/fold.json"


def dictionary_manifest(version: int) -> str:
    return f"{dictionary_folder(version)}/manifest.json"


def checkpoint_folder(name: str) -> str:
    """Return the folder of a checkpoint; the name is `<pass with a dash>-g<generation>`, for example `20200401-00-g3`."""
    return f"{CHECKPOINTS}/{name}"


def checkpoint_manifest(name: str) -> str:
    return f"{checkpoint_folder(name)}/manifest.json"
