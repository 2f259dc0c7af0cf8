"""What elastic-control.sh was told (data.config, slot.conf, options), as values of the chart."""

from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from elastic_ctr.cli.shell_assignments import Assignment, AssignmentRefused, read_assignments
from elastic_ctr.config.section import EXACT
from elastic_ctr.config.values_file import Values, sentences
from elastic_ctr.features.slots import SlotList

_KEYS = {
    # as data.config names them: the key of the values file
    "HDFS_ADDRESS": "data.source.url",
    "HDFS_UGI": "data.source.user",
    "DATASET_PATH": "data.path",
    "START_DATE_HR": "data.start",
    "END_DATE_HR": "data.end",
    "SPARSE_DIM": "model.sparseDim",
}
_NEEDED = ("HDFS_ADDRESS", "START_DATE_HR")
_HEAD = """\
# Written by `elastic-ctr values`; what is not here has the chart's default.
#   in a cluster:     helm upgrade --install ctr charts/elastic-ctr --namespace ctr --create-namespace -f THIS_FILE
#   on this machine:  elastic-ctr local run -f THIS_FILE
"""


class ValuesRefused(ValueError):
    """What was given makes no values file: one sentence a line."""


class Options(NamedTuple):
    """elastic-control.sh's -u -m -t -p -b and -hd; what is None was not given."""

    cpu: int | None = None
    mem_gib: int | None = None
    trainer: int | None = None
    pserver: int | None = None
    cube: int | None = None
    hdfs_address: str | None = None


class Translation(NamedTuple):
    """`notes` are sentences on what was given and has no place here any more."""

    values: dict[str, Any]
    notes: list[str]


class File(NamedTuple):
    """A file that was read, by the name that the user knows it by."""

    name: str
    text: str


def translate(data_config: File, slot_conf: File, options: Options) -> Translation:
    """The values load as config.values_file.Values. Raises ValuesRefused."""
    try:
        assignments = read_assignments(data_config.text)
    except AssignmentRefused as refused:
        raise ValuesRefused(f"{data_config.name} {refused}") from refused
    if options.hdfs_address is not None:
        assignments["HDFS_ADDRESS"] = Assignment(0, options.hdfs_address, None)
    found = (_wrong_with(name, each) for name, each in assignments.items())
    wrong = [f"{data_config.name} {sentence}" for sentence in found if sentence is not None]
    wrong += [f"{data_config.name} lacks {name}; add {name}=…" for name in _NEEDED if not _value(assignments, name)]
    try:
        slots = SlotList.parse(slot_conf.text)
    except ValueError as refused:
        wrong.append(f"{slot_conf.name}: {refused}")
    if wrong:
        raise ValuesRefused("\n".join(wrong))
    user, comma, _ = _value(assignments, "HDFS_UGI").partition(",")
    notes = ["HDFS_UGI holds a password, which is left out: WebHDFS asks for the user alone"] if comma else []
    resources = _given({"cpu": options.cpu, "memory": None if options.mem_gib is None else f"{options.mem_gib}Gi"})
    values = _given(
        {
            "data": _given(
                {
                    "source": _given({"url": _value(assignments, "HDFS_ADDRESS"), "user": user}),
                    "path": _value(assignments, "DATASET_PATH"),
                    "start": _value(assignments, "START_DATE_HR"),
                    "end": _value(assignments, "END_DATE_HR"),
                    "slots": [_number_or_text(name) for name in slots.names],
                }
            ),
            "model": _given({"sparseDim": _number_or_text(_value(assignments, "SPARSE_DIM"))}),
            "trainer": _given({"replicas": options.trainer, "resources": dict(resources)}),
            "pserver": _given({"replicas": options.pserver, "resources": dict(resources)}),
            "cube": _given({"config": _given({"shards": options.cube})}),
        }
    )
    try:
        Values.model_validate(values)
    except ValidationError as refused:
        raise ValuesRefused("\n".join(map(_in_their_words, sentences(refused, Values)))) from refused
    return Translation(values, notes)


def text_of(values: dict[str, Any]) -> str:
    """The values file. Text is in quotes: readers of YAML do not agree on what else is a number."""
    return _HEAD + yaml.dump(values, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100)


def _wrong_with(name: str, assignment: Assignment) -> str | None:
    where = f"line {assignment.line}: {name}"
    if name not in _KEYS:
        return f"{where} is none of {', '.join(_KEYS)}; remove the line"
    if assignment.variable is not None:
        way_out = ", or say --hdfs-address" if name == "HDFS_ADDRESS" else ""
        return f"{where} holds {assignment.variable}, which nothing here fills in; write the value itself{way_out}"
    if name == "HDFS_UGI" and assignment.value.startswith(","):
        return f"{where} names no user before its comma; write HDFS_UGI=user"
    return None


def _value(assignments: dict[str, Assignment], name: str) -> str:
    """Empty when it is not there, as for a shell."""
    return assignments[name].value if name in assignments else ""


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what nobody said."""
    return {key: value for key, value in settings.items() if value not in (None, "", {})}


def _number_or_text(text: str) -> int | str:
    """Whole numbers as such, where every reader gives them back digit by digit."""
    if text.isascii() and text.isdigit() and text == str(int(text[:20])) and int(text) <= EXACT:
        return int(text)
    return text


def _in_their_words(sentence: str) -> str:
    """With the name that data.config has for a key, where it has one."""
    key = sentence.split(" ", 1)[0].rstrip(":")
    known = next((name for name, ours in _KEYS.items() if ours == key), None)
    return sentence if known is None else f"{known}: {sentence}"


class _Dumper(yaml.SafeDumper):
    pass


def _quoted_value(dumper: yaml.SafeDumper, mapping: dict[str, Any]) -> yaml.MappingNode:
    node = dumper.represent_dict(mapping)
    for _, value in node.value:
        _quote(value)
    return node


def _quote(node: yaml.Node) -> None:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
        node.style = '"'
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _quote(each)


_Dumper.add_representer(dict, _quoted_value)
