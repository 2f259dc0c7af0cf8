"""The files and the command line of elastic-control.sh's own documentation."""

from typing import Any

from elastic_ctr.operate.cli.values import File, Sizes, translate

DATA_CONFIG = """\
export HDFS_ADDRESS="hdfs://192.168.48.87:9000" # HDFS地址
export HDFS_UGI="root,i" # HDFS用户名密码
export START_DATE_HR=20200401/00 # 训练集开始时间
export END_DATE_HR=20200401/03 # 训练集结束时间
export DATASET_PATH="/train_data" # 训练集在HDFS上的前缀
export SPARSE_DIM="1000001" # 稀疏参数维度,可不动
"""
SLOT_CONF = "".join(f"{slot}\n" for slot in range(27))
ALL = Sizes(cpu=4, mem=20, trainer=2, pserver=2, cube=5)


def values_of(data_config: str = DATA_CONFIG, slot_conf: str = SLOT_CONF, options: Sizes = ALL) -> dict[str, Any]:
    return translate(File("data.config", data_config), File("slot.conf", slot_conf), options).values
