#!/usr/bin/env python3
"""Says where the time of training steps goes: kernels, transfers, and neither, by rank.

    cprun --nproc-per-node 4 --trace run.cptrace train SCENARIO
    cpsim trace export run.cptrace -o run.json
    scripts/step_times.py run.json STEPS

STEPS is how many were made; the first, in which plans are prepared, is left out. A transfer is a step with a group, a kernel any
other; "hidden" is the share of the transfers' time in which a kernel of the same rank ran. "neither" is time in which the rank ran
no step of any plan: what plans, the trainer and the meeting of the ranks behind each step cost.
"""

import collections
import json
import sys


def union(spans):
    """The spans, joined where they touch, by time."""
    joined = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return joined


def length(spans):
    return sum(end - begin for begin, end in spans)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    steps = int(sys.argv[2])
    by_rank = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["cat"] != "pass":
            by_rank[event["pid"]].append(event)
    for rank, spans in sorted(by_rank.items()):
        # Each step looks the tokens of its micro-batches up, on the first stage; elsewhere its updates end it.
        marks = sorted(event["ts"] for event in spans if event["name"].startswith("embed:"))
        if marks:
            first = marks[len(marks) // steps]
        else:
            ends = sorted(event["ts"] + event["dur"] for event in spans if event["name"].startswith("optimizer:"))
            first = ends[len(ends) // steps - 1]
        kernels, transfers = [], []
        for event in spans:
            if event["ts"] >= first:
                is_transfer = "group" in event["args"]
                (transfers if is_transfer else kernels).append((event["ts"], event["ts"] + event["dur"]))
        busy, kernels, transfers = union(kernels + transfers), union(kernels), union(transfers)
        whole = busy[-1][1] - first
        hidden = length(kernels) + length(transfers) - length(busy)
        print(f"rank {rank}: {whole / 1e3 / (steps - 1):.1f} ms a step, kernels {length(kernels) / whole:.1%}, "
              f"transfers {length(transfers) / whole:.1%}, of which hidden {hidden / max(length(transfers), 1e-9):.1%}, "
              f"neither {1 - length(busy) / whole:.2%}")


if __name__ == "__main__":
    main()
