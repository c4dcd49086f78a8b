#!/usr/bin/env python3
"""The constants of sim/cost/timeline/nccl_constants.h inside of an NVLink domain, from the tables of the wheel aiconfigurator-core.

  scripts/nccl_fit.py wheel/aiconfigurator_core/systems/data        # see scripts/nccl_rows.py

Fits the shares of the model to A100, H100 and B200 by a random search with a fixed seed (least weighted sum of |log error|; half a
minute), prints them by their names in C++, and then the errors of those GPUs and of the ones left out. With the names of other
systems behind the folder it fits those instead, which shows what a generation is worth that nobody measured.
Needs pandas, pyarrow and numpy.
"""

import pathlib
import sys

import numpy
import pandas

# GB/s of NVLink, us of the smallest all-to-all of two (of the generation: the GPUs that are left out borrow it), NVLS.
SYSTEMS = {
    "a100_sxm/2.27.3": (300, 10.5, False),
    "h100_sxm/2.29.2": (450, 6.4, True),
    "b200_sxm/2.29.2": (900, 9.1, True),
    "h200_sxm/2.29.2": (450, 6.4, True),
    "b300_sxm/2.29.2": (900, 9.1, True),
    "gb200/2.29.2": (900, 9.1, True),
    "gb300/2.29.2": (900, 9.1, True),
}
FITTED = list(SYSTEMS)[:3]

BEGIN = {
    "kLl.base": 0.72, "kLl.step": 0.125, "kLlFill": 0.3, "kLlFillBytes": 4e3, "kLlTime": 3.0,
    "kLl128.base": 1.0, "kLl128.step": 0.15, "kLl128Time": 1.7,
    "kSimple.base": 1.0, "kSimple.step": 0.3, "kSimpleFillUs": 30.0, "kSimpleFillBytes": 2e7, "kSimpleTime": 1.25,
    "kOwnBlock": 0.6,
    "kNvls": 3.0, "kNvlsFillUs": 40.0, "kNvlsFillBytes": 2e7, "kNvlsTime": 1.75, "kNvlsMostGbps": 434.0,
    "kPairLl": 1.0, "kPairPeer": 0.03, "kPairLlGbps": 6.0, "kPairSimple": 1.6, "kPairFillUs": 15.0,
    "kPairFillBytes": 8e6, "kPairTime": 1.28, "kPairOwn": 0.45, "kPairMostGbps": 690.0,
}  # fmt: skip


def read(data: pathlib.Path) -> pandas.DataFrame:
    tables = []
    for system, (link, latency, nvls) in SYSTEMS.items():
        folder, version = system.split("/")
        table = pandas.read_parquet(data / folder / "comm" / "nccl" / version / "nccl_perf.parquet")
        table = table[table.nccl_dtype == "half"]
        table = table.assign(system=system, link=link, near=latency, nvls=nvls, bytes=table.message_size * 2.0)
        columns = ["system", "link", "near", "nvls", "op_name", "num_gpus", "bytes"]
        tables.append((table.groupby(columns).latency.median() * 1e3).rename("us").reset_index())
    return pandas.concat(tables, ignore_index=True)


def model(k: dict, t: pandas.DataFrame) -> numpy.ndarray:
    size, n, near = t.bytes.to_numpy(), t.num_gpus.to_numpy(float), t.near.to_numpy(float)
    link_us = 1e-3 / t.link.to_numpy(float)  # of a byte
    all_reduce = (t.op_name == "all_reduce").to_numpy()
    passes = numpy.where(all_reduce, 2, 1)
    steps, carried = passes * (n - 1), passes * (n - 1) / n * size * link_us
    fill = lambda us, half: us * size / (size + half)
    more = (t.link.to_numpy(float) / 900) ** 0.3  # kMostGrowth

    ll = near * (k["kLl.base"] + k["kLl.step"] * steps + fill(k["kLlFill"], n * k["kLlFillBytes"]))
    ll += k["kLlTime"] * carried
    ll128 = near * (k["kLl128.base"] + k["kLl128.step"] * steps) + k["kLl128Time"] * carried
    simple = near * (k["kSimple.base"] + k["kSimple.step"] * steps) + k["kSimpleTime"] * carried
    simple += fill(k["kSimpleFillUs"], k["kSimpleFillBytes"])
    simple += numpy.where(all_reduce, 0, k["kOwnBlock"] / n) * size * link_us
    rings = numpy.minimum(numpy.minimum(ll, ll128), simple)
    switch = near * k["kNvls"] + fill(k["kNvlsFillUs"], k["kNvlsFillBytes"])
    switch += size * numpy.maximum(k["kNvlsTime"] * link_us, 1e-3 / k["kNvlsMostGbps"] / more)
    in_switch = all_reduce & t.nvls.to_numpy() & (n > 2)
    rings = numpy.where(in_switch, numpy.minimum(rings, switch), rings)

    pair_us = (k["kPairTime"] * (n - 1) / n + k["kPairOwn"] / n) * link_us
    pair_us = numpy.maximum(pair_us, 1e-3 / k["kPairMostGbps"] / more)
    peers = k["kPairPeer"] * (n - 2)
    pairs_ll = near * (k["kPairLl"] + peers) + size * numpy.maximum(1e-3 / n / k["kPairLlGbps"], pair_us)
    pairs = near * (k["kPairSimple"] + peers) + fill(k["kPairFillUs"], k["kPairFillBytes"]) + size * pair_us
    return numpy.where(t.op_name == "alltoall", numpy.minimum(pairs_ll, pairs), rings)


def fit(table: pandas.DataFrame) -> dict:
    random = numpy.random.default_rng(3)
    size = table.bytes.to_numpy()
    weight = numpy.where(size < 1 << 20, 0.6, numpy.where(size < 1 << 26, 1.0, 2.0))
    loss = lambda k: (weight * numpy.abs(numpy.log(model(k, table) / table.us.to_numpy()))).sum()
    best, least, width = dict(BEGIN), loss(BEGIN), 0.2
    for i in range(20000):
        changed = dict(best)
        for name in random.choice(list(BEGIN), size=random.integers(1, 4), replace=False):
            changed[name] *= numpy.exp(random.normal() * width)
        now = loss(changed)
        if now < least:
            best, least = changed, now
        if i % 1000 == 999:
            width *= 0.6
    return best


def main(data: pathlib.Path, systems: list) -> None:
    table = read(data)
    constants = fit(table[table.system.isin(systems)])
    for name, value in constants.items():
        print(f"{name} = {value:.3g}")
    table["error"] = numpy.abs(model(constants, table) / table.us - 1)
    table["size"] = numpy.where(table.bytes < 1 << 20, "small", numpy.where(table.bytes < 1 << 26, "medium", "large"))
    table["is"] = numpy.where(table.system.isin(systems), "fitted", "left out")
    print(table.groupby(["is", "system", "size"]).error.median().unstack().round(3).to_string())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:] or FITTED)
