"""Where everything published stands in the store. Nothing else knows a path."""

VERSIONS = "output/versions"
CUBE = "output/ctr_cube"
MODELS = "output/ctr_model"
DICTIONARIES = "output/ctr_dict"
DONEFILES = "output/ctr_cube/donefile"
REFUSED = "output/refused"
HOLDS = "output/holds"
STATISTICS = "output/statistics"
CHECKPOINTS = "checkpoints"
SCORES = "scores"

# The dense network of a version as files; a checkpoint that begins another model may have them in this folder of it.
NETWORK = ("network.pdmodel", "network.pdiparams")
NETWORK_FOLDER = "network"

BASE_DONEFILE = f"{DONEFILES}/base.txt"
PATCH_DONEFILE = f"{DONEFILES}/patch.txt"


VERSION_DIGITS = 18


def is_version(name: str) -> bool:
    """Whether a file or folder name is a version's id; other names in a store are not ours."""
    return name.isascii() and name.isdigit() and len(name) <= VERSION_DIGITS and str(int(name)) == name != "0"


def scores_folder(job: str) -> str:
    """The folder of a scoring Job in the store, unless it was given another place."""
    return f"{SCORES}/{job}"


def refusal(version: int) -> str:
    """cube-transfer says there that a version is refused, and why."""
    return f"{REFUSED}/{version}.json"


def hold(number: int) -> str:
    """The master says there that it publishes no further version, and why."""
    return f"{HOLDS}/{number}.json"


def resumption(number: int) -> str:
    """Its appearance ends a hold."""
    return f"{HOLDS}/{number}.resumed"


def statistics_file(digest: str) -> str:
    """statistics.json by its SHA-256: the statistics of the columns that a model's features are made with."""
    return f"{STATISTICS}/{digest}.json"


def version_manifest(version: int) -> str:
    """Its appearance is the commit of a version."""
    return f"{VERSIONS}/{version}.json"


def cube_folder(version: int, kind: str) -> str:
    """The SequenceFiles of a version; kind is `base` or `delta`. This is a donefile's `input`."""
    return f"{CUBE}/{version}/{kind}"


def cube_file(version: int, kind: str, partition: int, partitions: int) -> str:
    return f"{cube_folder(version, kind)}/feature-{partition:05d}-of-{partitions:05d}.seq"


def counts_file(version: int) -> str:
    """Shows and clicks that a delta by key has added to the rows of its keys."""
    return f"{CUBE}/{version}/counts.seq"


def network_files(version: int) -> tuple[str, ...]:
    """The dense network of a version."""
    return tuple(f"{model_folder(version)}/{name}" for name in NETWORK)


def model_folder(version: int) -> str:
    """The dense network and the sample lines of a version."""
    return f"{MODELS}/{version}"


def sample_file(version: int) -> str:
    return f"{model_folder(version)}/sample.jsonl"


def dictionary_folder(version: int) -> str:
    return f"{DICTIONARIES}/{version}"


def dictionary_part(version: int, partition: int) -> str:
    return f"{dictionary_folder(version)}/part-{partition:05d}.dict"


def dictionary_overlay(version: int) -> str:
    """The overlay of a version whose overlay is one file over all partitions."""
    return f"{dictionary_folder(version)}/overlay.dict"


def dictionary_fold(version: int) -> str:
    """The manifest of full parts that an overlay's version was merged into after it was published."""
    return f"{dictionary_folder(version)}/fold.json"


def dictionary_manifest(version: int) -> str:
    return f"{dictionary_folder(version)}/manifest.json"


def checkpoint_folder(name: str) -> str:
    """Name is `<pass with a dash>-g<generation>`, for example `20200401-00-g3`."""
    return f"{CHECKPOINTS}/{name}"


def checkpoint_manifest(name: str) -> str:
    return f"{checkpoint_folder(name)}/manifest.json"
