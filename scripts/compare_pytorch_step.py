#!/usr/bin/env python3
"""Times a training step of cprun beside the same step of Hugging Face's LlamaForCausalLM in PyTorch, on one core.

    scripts/compare_pytorch_step.py [--bin build/release/bin] [--rounds 5] [--core 0]

Needs torch and transformers from PyPI (the wheel for CPUs does). The model has 4 layers of width 512, the step 4 sequences of 512
tokens, f32, AdamW with clipping, one thread. A round times one and then the other, so that what else the machine does meets both.
Told are tokens a second in the median of each round's steps behind the first, and the median of the rounds' ratios: above 1, ours
is the faster one.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, vocab_size=256,
             max_position_embeddings=2048, tie_word_embeddings=False)
BATCH, SEQUENCE, STEPS = 4, 512, 8


def ours(program, core):
    """Seconds of each step of a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "head_dim": 64,
                  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "float32", **SIZES}
        (folder / "config.json").write_text(json.dumps(config))
        scenario = folder / "train.txtpb"
        scenario.write_text(f'train {{ model: "{folder}" seq_len: {SEQUENCE} global_batch: {BATCH} steps: {STEPS} evaluation: 0.01\n'
                            f'  layout: "micro_batch={BATCH}" }}')
        subprocess.run(["taskset", "-c", str(core), program, "--nproc-per-node", "1", "train", scenario, "--log", folder / "log"],
                       check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
        return [line["seconds"] for line in lines if line["event"] == "step"]


def theirs():
    """The same of this process."""
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as missing:
        sys.exit(f"{missing}; pip install torch transformers")
    torch.set_num_threads(1)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.randint(0, SIZES["vocab_size"], (BATCH, SEQUENCE))
    seconds = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    flags = parser.parse_args()
    os.sched_setaffinity(0, {flags.core})
    ratios = []
    for number in range(1, flags.rounds + 1):
        rates = [BATCH * SEQUENCE / statistics.median(seconds[1:])
                 for seconds in (ours(f"{flags.bin}/cprun", flags.core), theirs())]
        ratios.append(rates[0] / rates[1])
        print(f"round {number}: {rates[0]:.0f} tokens/s, PyTorch {rates[1]:.0f}: {ratios[-1]:.2f}", flush=True)
    print(f"median of the ratios: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
