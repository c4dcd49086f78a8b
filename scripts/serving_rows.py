#!/usr/bin/env python3
"""Copies measured rows of serving into sim/cost/presets/validation/served_tokens.csv, and finds the host's times from half of them.

    scripts/serving_rows.py rows SAMPLE.csv           writes the table
    scripts/serving_rows.py host ROWS.json            prints step_host_us and request_host_us of each software

SAMPLE.csv is aiconfigurator_core/systems/silicon_sample.csv of the wheel aiconfigurator-core 0.12.0 from PyPI (Apache-2.0): 5,221 rows
of servers under load, of which those of dense models that read prompts and write tokens on the same GPUs are taken. ROWS.json is what
`cpsim validate served_tokens --json` says, with both times at 0 in the profiles.

How the rows were measured, as far as it is known:
  - a client keeps a fixed number of requests under way (`requests`): as soon as one is answered it sends the next;
  - Llama-3.1-70B: InferenceMAX. Prompts and answers have 80 to 100 % of the lengths that the row names, evenly drawn, so that the mean
    is 90 % (`length_share`); the cache is in fp8 (kv-cache-dtype of its scripts of September and October 2025); prefix caching is off;
  - the others: the lengths are those named. Qwen3-32B in fp8 must have had a cache in fp8: in 16 bits the rows of one GPU with 64
    prompts of 4,096 tokens do not fit, and no request waited;
  - SGLang with Qwen3-32B: its times to the first token are those of half of all prompts, one after the other: requests came and were
    answered together (`arrivals`). In all others they are spread.

A half of the groups (model, GPU, software, precision, lengths), by a hash, is in sample: it sets the host's times in the profiles of
vllm, sglang and trtllm (sim/cost/presets/software), and nothing else.
"""

import csv
import hashlib
import json
import pathlib
import re
import sys

TABLE = pathlib.Path(__file__).resolve().parent.parent / "sim" / "presets" / "validation" / "served_tokens.csv"
COLUMNS = ("model,cluster,software,version,linear_dtype,kv_dtype,prompt_tokens,new_tokens,requests,tp,length_share,arrivals,"
           "ttft_ms,tpot_ms,sample,oddity").split(",")
MODELS = {"Llama-3.1-70B": "llama-3.1-70b", "Llama-3.1-8B-Instruct": "llama-3.1-8b", "Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
          "Qwen3-32B": "qwen3-32b", "Qwen3-32B-NVFP4": "qwen3-32b"}
CLUSTERS = {"h100_sxm": "dgx-h100", "h200_sxm": "hgx-h200", "b200_sxm": "hgx-b200", "b300_sxm": "hgx-b300", "gb200": "gb200-nvl72",
            "gb300": "gb300-nvl72"}
PRECISIONS = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "": "bf16"}


def oddity(row, model, source):
    if "silicon_concurrency" not in source:
        return "the source does not say how many requests were under way"
    if row["system"] == "gb200" and row["gemm_quant_mode"] == "":
        return "servers behind one router: of the same number of requests one row takes 8.1 ms and one 41.9 ms"
    if model == "Llama-3.1-8B-Instruct-FP8":
        return "prompts were partly in the cache: its rows would need up to 1988 of 1979 TFLOP/s"
    return ""


def in_sample(row):
    key = " ".join(row[c] for c in ("model", "cluster", "software", "linear_dtype", "prompt_tokens", "new_tokens"))
    return hashlib.sha256(key.encode()).digest()[0] < 128


def take(path):
    rows = []
    for line, row in enumerate(csv.DictReader(open(path)), 2):
        model = row["model_path"].split("/")[-1]
        if row["mode"] != "agg" or model not in MODELS:
            continue
        for column in ("silicon_tpot_ms", "silicon_ttft_ms", "batch_size", "tp_size"):
            try:
                ok = float(row[column]) > 0
            except ValueError:
                ok = False
            if not ok:
                raise SystemExit(f"{path}:{line}: {column} '{row[column]}' is no number above 0; leave the row out")
        if row["system"] not in CLUSTERS:
            raise SystemExit(f"{path}:{line}: there is no cluster preset of system '{row['system']}'; use one of {', '.join(CLUSTERS)}")
        source = row["silicon_data_source"]
        inference_max = "model=Llama-3.1-70B" in source
        version = row["backend_version"] or re.search(r"measured=([0-9-]+)", source).group(1)[:7]
        precision = PRECISIONS[row["gemm_quant_mode"]]
        together = row["backend"] == "sglang" and model == "Qwen3-32B"
        taken = {"model": MODELS[model], "cluster": CLUSTERS[row["system"]], "software": row["backend"], "version": version,
                 "linear_dtype": precision,
                 "kv_dtype": "fp8" if inference_max or (row["backend"] == "trtllm" and precision != "bf16") else "bf16",
                 "prompt_tokens": row["isl"], "new_tokens": row["osl"], "requests": str(int(float(row["batch_size"]))),
                 "tp": str(int(float(row["tp_size"]))), "length_share": "0.9" if inference_max else "1",
                 "arrivals": "together" if together else "spread", "ttft_ms": f"{float(row['silicon_ttft_ms']):.5g}",
                 "tpot_ms": f"{float(row['silicon_tpot_ms']):.5g}", "oddity": oddity(row, model, source)}
        taken["sample"] = "in" if in_sample(taken) else "out"
        rows.append(taken)
    keys = [c for c in COLUMNS if c not in ("ttft_ms", "tpot_ms", "sample", "oddity")]
    rows.sort(key=lambda r: [int(r[c]) if r[c].isdigit() else r[c] for c in keys[:6]] + [int(r[c]) for c in keys[6:10]])
    with open(TABLE, "w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows in {TABLE}")


def median(values):
    values = sorted(values)
    n = len(values)
    return (values[(n - 1) // 2] + values[n // 2]) / 2


def host(path):
    """Of TPOT = GPUs + a + b requests: the a and b, 0 or more, that leave the least mean of the relative errors, on a grid."""
    table = json.load(open(path))
    table = table[0] if isinstance(table, list) else table.get("tables", [table])[0]
    measured = {f"served_tokens.csv:{n}": row for n, row in enumerate(csv.DictReader(open(TABLE)), 2)}
    by_software = {}
    for row in table["rows"]:
        if row["in_sample"] and not row["oddity"]:
            of = measured[row["where"].split(" ")[0]]
            by_software.setdefault(of["software"], []).append((row["measured"], row["predicted"], int(of["requests"])))
    for software, rows in sorted(by_software.items()):
        best = min((sum(abs((p + a + b * c) / m - 1) for m, p, c in rows) / len(rows), a, b)
                   for a in range(0, 4001, 50) for b in range(0, 81, 2))
        errors = median([abs((p + best[1] + best[2] * c) / m - 1) for m, p, c in rows])
        print(f"{software}: step_host_us {best[1]}, request_host_us {best[2]}, of {len(rows)} rows, median {errors:.3f}, "
              f"without {median([abs(p / m - 1) for m, p, c in rows]):.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("rows", "host"):
        print(__doc__)
        sys.exit(2)
    (take if sys.argv[1] == "rows" else host)(sys.argv[2])
