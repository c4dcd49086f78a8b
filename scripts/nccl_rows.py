#!/usr/bin/env python3
"""Rows for sim/cost/presets/validation/nccl_gpus.csv, from the tables of the wheel aiconfigurator-core (Apache-2.0).

  pip download --no-deps aiconfigurator-core==0.12.0 && unzip aiconfigurator_core-*.whl -d wheel
  scripts/nccl_rows.py wheel/aiconfigurator_core/systems/data > sim/cost/presets/validation/nccl_gpus.csv

Needs pandas and pyarrow. The wheel counts a message in elements; sizes here are bytes, as nccl-tests counts them: the whole
buffer of one GPU. Each row is the median of the runs that the wheel has of it. Every second size is left out, to keep the table
small.
"""

import pathlib
import sys

import pandas

SYSTEMS = {
    "a100_sxm": ("A100", "2.27.3"),
    "h100_sxm": ("H100", "2.29.2"),
    "h200_sxm": ("H200", "2.29.2"),
    "b200_sxm": ("B200", "2.29.2"),
    "b300_sxm": ("B300", "2.29.2"),
    "gb200": ("GB200", "2.29.2"),
    "gb300": ("GB300", "2.29.2"),
    "l40s": ("L40S", "2.27.3"),
    "rtx_pro_6000_server": ("RTX PRO 6000", "2.29.2"),
}
NAMES = {"alltoall": "all_to_all"}
SIZES = [512 << shift for shift in range(0, 21, 2)]  # 512 B to 512 MiB


def main(data: pathlib.Path) -> None:
    print("system,nccl,gpus,collective,total_bytes,microseconds,source")
    for folder, (system, version) in SYSTEMS.items():
        source = f"{folder}/comm/nccl/{version}"
        table = pandas.read_parquet(data / source / "nccl_perf.parquet")
        table = table[table.nccl_dtype == "half"]
        table = table.assign(bytes=table.message_size * 2)
        times = table.groupby(["op_name", "num_gpus", "bytes"]).latency.median()
        for (operation, gpus, size), milliseconds in times.items():
            if size in SIZES:
                name = NAMES.get(operation, operation)
                print(f"{system},{version},{gpus},{name},{size},{milliseconds * 1e3:.6g},{source}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
