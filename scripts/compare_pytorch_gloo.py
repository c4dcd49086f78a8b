#!/usr/bin/env python3
"""Times redistributions over Gloo beside PyTorch's DTensor over Gloo, on processes of this machine.

    scripts/compare_pytorch_gloo.py [--bin build/release/bin] [--ranks 4] [--rounds 15] [--only REGEX]

Needs torch from PyPI (the wheel for CPUs does) and the programs cprun and gloo_moves. Both sides have the same number of processes,
one thread of computation each, as torchrun has, and stay up; a round times one and then the other, so that what else the machine
does meets both. Told are the medians of the rounds, and the median of the rounds' ratios: above 1, ours is the faster one. Fails (1)
where the two results differ.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
except ImportError as missing:
    sys.exit(f"{missing}; pip install torch numpy")

LARGE, MIDDLE, SMALL, UNEVEN = "4096x4096", "1024x1024", "128x128", "4097x1021"

# Mesh, shape, from, to.
MOVES = [
    *(
        (mesh, shape, source, target)
        for shape in (LARGE, MIDDLE, SMALL, UNEVEN)
        for mesh, source, target in (
            ("a=4", "S(0)", "R"),
            ("a=4", "S(1)", "R"),
            ("a=4", "R", "S(0)"),
            ("a=4", "R", "S(1)"),
            ("a=4", "S(0)", "S(1)"),
            ("a=4", "S(1)", "S(0)"),
            ("a=4", "P(sum)", "R"),
            ("a=4", "P(sum)", "S(0)"),
            ("a=4", "P(sum)", "S(1)"),
            ("a=2,b=2", "P(sum),P(sum)", "S(0),S(1)"),
            ("a=2,b=2", "S(0),P(sum)", "R,S(1)"),
            ("a=2,b=2", "S(0),S(1)", "R,R"),
            ("a=2,b=2", "R,R", "S(0),S(1)"),
            ("a=2,b=2", "S(0),R", "R,S(0)"),
        )
    ),
]


def words_of(text):
    """The placements of "S(0),P(sum)"."""
    kinds = {"R": Replicate, "P(sum)": Partial}
    return [kinds[word]() if word in kinds else Shard(int(word[2:-1])) for word in text.split(",")]


class OfTorch:
    """A rank's part of PyTorch's moves."""

    def __init__(self, rank):
        self.rank = rank
        self.meshes = {}

    def mesh(self, text):
        if text not in self.meshes:
            axes = [axis.split("=") for axis in text.split(",")]
            self.meshes[text] = init_device_mesh(
                "cpu", tuple(int(size) for _, size in axes), mesh_dim_names=tuple(name for name, _ in axes)
            )
        return self.meshes[text]

    def source(self, mesh, shape, placements):
        local = list(shape)
        own = 0
        for axis, placement in enumerate(placements):
            coordinate = mesh.get_local_rank(axis)
            if isinstance(placement, Shard):
                chunk = -(-local[placement.dim] // mesh.size(axis))
                local[placement.dim] = min(max(local[placement.dim] - coordinate * chunk, 0), chunk)
            if not isinstance(placement, Replicate):
                own = own * 8 + coordinate + 1
        numel = torch.Size(local).numel()
        values = ((torch.arange(numel, dtype=torch.int64) * 7 + own * 13) % 64).to(torch.float32)
        return DTensor.from_local(
            values.view(local), mesh, placements, run_check=False, shape=torch.Size(shape), stride=(shape[1], 1)
        )

    def run(self, mesh_text, shape_text, source_text, target_text, repetitions):
        mesh = self.mesh(mesh_text)
        shape = [int(size) for size in shape_text.split("x")]
        source, target = self.source(mesh, shape, words_of(source_text)), words_of(target_text)
        result = source.redistribute(mesh, target)
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(repetitions):
            result = source.redistribute(mesh, target)
        local = result.to_local()
        seconds = (time.perf_counter() - begin) / repetitions
        flat = local.reshape(-1).to(torch.float64)
        weights = torch.arange(flat.numel(), dtype=torch.float64) % 251 + 1
        return seconds, float((flat * weights).sum())


def torch_rank(rank, ranks, store, pipe):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    own = OfTorch(rank)
    while (move := pipe.recv()) is not None:
        pipe.send(own.run(*move))
    dist.destroy_process_group()


class Torch:
    def __init__(self, ranks, directory):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.ranks = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            arguments = (rank, ranks, directory / "torch_store", theirs)
            self.ranks.append(context.Process(target=torch_rank, args=arguments))
            self.ranks[-1].start()
            self.pipes.append(ours)

    def run(self, move):
        for pipe in self.pipes:
            pipe.send(move)
        return [pipe.recv() for pipe in self.pipes]

    def end(self):
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for rank in self.ranks:
            rank.join()


class Ours:
    def __init__(self, ranks, directory, binaries):
        for rank in range(ranks):
            for name in ("ask", "answer"):
                os.mkfifo(directory / f"{name}.{rank}")
        command = [binaries / "cprun", "--nproc-per-node", str(ranks), "--", binaries / "gloo_moves", directory]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        self.job = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, env=environment)
        self.asks, self.answers = [], []
        for rank in range(ranks):  # in the order in which a rank opens its pipes
            self.asks.append(open(directory / f"ask.{rank}", "w"))
            self.answers.append(open(directory / f"answer.{rank}"))

    def run(self, move):
        for ask in self.asks:
            print(*move, file=ask, flush=True)
        return [tuple(map(float, answer.readline().split())) for answer in self.answers]

    def end(self):
        for pipe in self.asks + self.answers:
            pipe.close()
        self.job.wait()


def time_move(sides, move, rounds):
    """Of each side: the seconds of each round, of the slowest rank; and whether the results are equal."""
    times, sums = [[], []], [None, None]
    counts = [1, 1]
    for number in range(-1, rounds):
        for side, own in enumerate(sides):
            answers = own.run((*move, counts[side]))
            sums[side] = [checksum for _, checksum in answers]
            seconds = max(seconds for seconds, _ in answers)
            if number >= 0:
                times[side].append(seconds)
        if number < 0:  # a tenth of a second each
            counts = [max(3, min(1000, int(0.1 / max(seconds, 1e-6)))) for _ in sides]
    return times, sums[0] == sums[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin", type=pathlib.Path)
    parser.add_argument("--ranks", default=4, type=int, choices=[4])
    parser.add_argument("--rounds", default=15, type=int)
    parser.add_argument("--only", default="", help="moves whose \"MESH SHAPE FROM TO\" matches this regular expression")
    options = parser.parse_args()
    print(f"torch {torch.__version__}; {options.ranks} processes on {os.cpu_count()} cores; ms a move")
    print(f"{'mesh':8} {'shape':10} {'from':14} {'to':10} {'ours':>9} {'DTensor':>9} {'ratio':>6}", flush=True)
    wrong = slower = 0
    with tempfile.TemporaryDirectory(prefix="cpsim_") as name:
        directory = pathlib.Path(name)
        sides = [Ours(options.ranks, directory, options.bin.resolve()), Torch(options.ranks, directory)]
        try:
            for move in MOVES:
                if not re.search(options.only, " ".join(move)):
                    continue
                times, equal = time_move(sides, move, options.rounds)
                ratio = statistics.median(theirs / ours for ours, theirs in zip(*times))
                wrong, slower = wrong + (not equal), slower + (ratio < 1)
                ours, theirs = (1000 * statistics.median(side) for side in times)
                mesh, shape, source, target = move
                print(
                    f"{mesh:8} {shape:10} {source:14} {target:10} {ours:9.3f} {theirs:9.3f} {ratio:6.2f}"
                    + ("" if equal else "  RESULTS DIFFER"),
                    flush=True,
                )
        finally:
            for side in sides:
                side.end()
    print(f"{wrong} results differ, {slower} moves are slower than DTensor's")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
