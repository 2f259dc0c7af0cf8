"""The trainer's settings, with what a test does not name at its smallest."""

from pathlib import Path
from typing import Any

from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import TrainerConfig

MODEL = Model()
SLOTS = ("a",)


def settings_of(scratch: Path, **given: Any) -> TrainerFile:
    return TrainerFile(
        master_address="127.0.0.1:1",
        data=Data(source=DataSource(url=f"file://{scratch.parent}/logs"), start="20200401/00", slots=SLOTS),
        model=MODEL,
        store=StoreConfig(url=f"file://{scratch.parent}/store"),
        trainer=TrainerConfig(scratch_dir=str(scratch)),
        **given,
    )
