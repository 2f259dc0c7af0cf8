"""The plain way to write a record, beside the compiled converter."""

from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.formats.line import Instance


def multislot(instance: Instance) -> bytes:
    """The line that Paddle's MultiSlot feed reads: `<count> value …` for show, click and each slot; no slot is `1 0`."""
    keys = (f"{len(slot)} {' '.join(map(str, slot))}" if slot else f"1 {PADDING_KEY}" for slot in instance.keys)
    return f"1 {instance.show} 1 {instance.click} {' '.join(keys)}\n".encode()
