#!/usr/bin/env python3
"""Makes the tokenizers and the expected tokens of tests/traces/tokenizer_test.cc with Hugging Face's `tokenizers`.

    pip install tokenizers && scripts/make_tokenizer_cases.py

Two vocabularies are trained on the project's pages: one of bytes (GPT-2 and what came from it) and one of characters (SentencePiece's).
The sections around them are those that models have. tests/traces/tokenizers.json holds, for each kind, its sections and the tokens of
all texts.
"""

import json
import pathlib

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/traces/tokenizers.json"

TEXTS = [
    "", " ", "a", "Hello, world! It's 2,048 tokens; they'll DON'T we'RE.", "  two spaces\n\n\nthree lines\r\n\ttab", "a\u00a0b\u3000c\u2028d\u180ee \u180ef\u0085g",
    "\u4ef7\u683c\u662f1234567.89\u5143\uff0c\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4", "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd\U0001f44d", "e\u0301 \u00e9 \u1e9b\u0323 \ufb01 \u00bd \u2460 \u2167", "\u0661\u0662\u0663\u0664 1234567890 12 3",
    "\u017f's 'S 'LL \u212aey's", " " * 20 + "x" + "\n" * 9 + " \n ", "x" * 70 + " the the" * 20, "def f(x):\n    return x**2  # comment\n\n\n",
    "<|endoftext|>one<|endoftext|> two <mask> three<mask>\n<|endoftext|><|end", "<Tag>in<tag> \u00e9<T\u00e9g> <Te\u0301g>", "\u2581under \u2581\u2581score <0x41>", "a\x00b\x01\x7f", "\u0430\u0431\u0432 \u05e2\u05d1\u05e8 \u0627\u0644\u0639 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\U0010ffff\ue000", "$100 + 5% = #1 @x ^_^ ~`|\u2026\u2014\u201cq\u201d", "the layout of the ranks and the plans of the layers are in the",
]

LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_OSS = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}"
           r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def template(before, behind=()):
    special = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in (*before, *behind)}
    def around(tokens):
        return [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in tokens]
    return {"type": "TemplateProcessing", "single": [*around(before), {"Sequence": {"id": "A", "type_id": 0}}, *around(behind)],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": special}


def added(token, content, **options):
    return {"id": token, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **options}


def trained(tokenizer, trainer):
    pages = sorted((ROOT / "docs").glob("*.md"))
    tokenizer.train([str(page) for page in pages], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": model["merges"]}


def models_of():
    of_bytes = Tokenizer(models.BPE())
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_model = trained(of_bytes, trainers.BpeTrainer(vocab_size=256 + 300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    # A token that no merge makes: with ignore_merges alone it is found.
    bytes_model["vocab"]["\u0120layouts"] = len(bytes_model["vocab"])
    of_characters = Tokenizer(models.BPE(unk_token="<unk>"))
    of_characters.normalizer = normalizers.Replace(" ", "\u2581")
    of_characters.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    characters = trained(of_characters, trainers.BpeTrainer(vocab_size=len(tokens) + 350, special_tokens=tokens, limit_alphabet=60, show_progress=False))
    return {"bytes": bytes_model, "characters": characters}


def kinds(sizes):
    """Name, which model, the model's options, the other sections. Added tokens come behind those of the vocabularies, which have `sizes`:
    Hugging Face's numbers them so, whatever a file says."""
    end, end_of_characters = sizes["bytes"], sizes["characters"]
    end_of_text = added(end, "<|endoftext|>")
    characters = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    mistral = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    fallback = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    return [
        ("gpt2", "bytes", {}, dict(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}, added_tokens=[end_of_text],
                                   post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False})),
        ("llama3", "bytes", {"ignore_merges": True},
         dict(pre_tokenizer=sequence(split(LLAMA_3), BYTES), added_tokens=[end_of_text],
              post_processor={"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                                                                 template([("<|endoftext|>", end)])]})),
        ("qwen3", "bytes", {}, dict(normalizer={"type": "NFC"}, pre_tokenizer=sequence(split(QWEN), BYTES),
                                    added_tokens=[end_of_text, added(end + 1, "<T\u00e9g>", normalized=True, special=False)])),
        ("gpt-oss", "bytes", {}, dict(pre_tokenizer=sequence(split(GPT_OSS), BYTES), added_tokens=[end_of_text])),
        ("deepseek", "bytes", {}, dict(normalizer={"type": "Sequence", "normalizers": []}, added_tokens=[end_of_text],
                                       pre_tokenizer=sequence(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK), BYTES))),
        ("starcoder", "bytes", {}, dict(added_tokens=[end_of_text, added(end + 1, "<mask>", lstrip=True), added(end + 2, "<|endoftext|><|end", rstrip=True)],
                                        pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Contiguous"},
                                                               {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}))),
        ("splits", "bytes", {}, dict(normalizer={"type": "NFKC"}, added_tokens=[end_of_text],
                                     pre_tokenizer=sequence(split(r"\p{N}", "Contiguous"), split("[aeiou]", "MergedWithNext"), split("[xyz ]", "MergedWithPrevious"),
                                                            split(r"[^\n]+", "Removed", True), BYTES))),
        ("llama2", "characters", fallback, dict(added_tokens=characters, post_processor=template([("<s>", 1)]),
                                                normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace]})),
        ("mistral", "characters", fallback, dict(added_tokens=characters + [added(end_of_characters, "<|endoftext|>"), added(end_of_characters + 1, "<mask>", rstrip=True)], pre_tokenizer=mistral,
                                                 post_processor=template([("<s>", 1)], [("</s>", 2)]))),
        ("gemma", "characters", fallback, dict(normalizer=replace, added_tokens=characters + [added(end_of_characters, "\n\n", special=False), added(end_of_characters + 1, "\n\n\n", special=False)],
                                               pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})),
        ("words", "characters", {"unk_token": "<unk>"}, dict(added_tokens=characters, pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True})),
        ("fused", "characters", {"unk_token": "<unk>", "fuse_unk": True}, dict(added_tokens=characters, normalizer={"type": "NFD"}, pre_tokenizer={**mistral, "prepend_scheme": "never", "split": True})),
    ]


def main():
    vocabularies = models_of()
    cases = []
    for name, model, options, sections in kinds({name: len(model["vocab"]) for name, model in vocabularies.items()}):
        whole = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
                 "added_tokens": [], **sections,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                           "byte_fallback": False, "ignore_merges": False, **options, **vocabularies[model]}}
        tokenizer = Tokenizer.from_str(json.dumps(whole))
        cases.append({"name": name, "model": model, "options": options, "sections": sections, "tokens": [tokenizer.encode(text).ids for text in TEXTS]})
    def lines(values):
        return "[\n" + ",\n".join(json.dumps(value) for value in values) + "]"
    parts = ",\n".join(f"{json.dumps(name)}: {json.dumps(model)}" for name, model in vocabularies.items())
    OUT.write_text(f'{{"texts": {lines(TEXTS)},\n"models": {{\n{parts}}},\n"kinds": {lines(cases)}}}\n')
    print(f"{OUT}: {len(cases)} kinds, {len(TEXTS)} texts")


if __name__ == "__main__":
    main()
