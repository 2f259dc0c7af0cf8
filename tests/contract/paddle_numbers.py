"""Prints the numbers that Paddle reads of a record's text, as the bits of float32: `python paddle_numbers.py FILE NUMBERS SLOTS`."""

import json
import os
import sys
import zlib  # noqa: F401  (before paddle)
from pathlib import Path

import numpy as np


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import paddle
    from paddle import static

    file, count, slots = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    paddle.enable_static()
    show, click = (static.data(name, [None, 1], "int64", lod_level=1) for name in ("show", "click"))
    numbers = static.data("numbers", [None, count], "float32")
    keys = [static.data(f"slot.{slot}", [None, 1], "int64", lod_level=1) for slot in range(slots)]
    seen = static.create_global_var([1, count], 0.0, "float32", persistable=True, name="seen")
    paddle.assign(numbers, output=seen)
    executor = static.Executor(paddle.CPUPlace())
    executor.run(static.default_startup_program())
    found = []
    for number, line in enumerate(file.read_text().splitlines()):
        part = file.with_name(f"{number}.txt")
        part.write_text(f"{line}\n")
        dataset = paddle.distributed.InMemoryDataset()
        dataset.init(batch_size=1, thread_num=1, use_var=[show, click, numbers, *keys], pipe_command="cat")
        dataset.set_filelist([str(part)])
        dataset.load_into_memory()
        executor.infer_from_dataset(static.default_main_program(), dataset)
        found.append(np.array(static.global_scope().find_var("seen").get_tensor()).reshape(-1).view(np.uint32).tolist())
    answers.write(json.dumps(found))
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
