#!/usr/bin/env python3
"""Holds small models of cprun to Hugging Face's Transformers, family by family, through files.

    scripts/compare_transformers.py [--bin build/release/bin] [FAMILY ...]

Needs torch and transformers (5.24) from PyPI; the wheel for CPUs does. Of each family Transformers draw a model of two to four
layers and save it. `cprun train --init-from` begins with these files, makes two steps on one sequence, and saves behind the first.
The loss of the first step has to be that of Transformers' model; and that of the second one of the model that Transformers load
from cprun's checkpoint, with no tensor missing and none left over. So the numbers of a model, its names on disk in both directions,
and what its config means are all held at once. Losses are f32: they may differ by 2e-6 of themselves, some hundred roundings.
Numbers that routers add to scores when they choose (e_score_correction_bias, expert_bias) are not 0, and come back as they were. Transformers have no
class for Kimi K2, which is a DeepSeek-V3 without groups of experts.
"""

import argparse
import array
import json
import pathlib
import subprocess
import sys
import tempfile

SEQUENCE, VOCAB = 48, 61
COMMON = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=False, pad_token_id=None,
              bos_token_id=None, eos_token_id=None, attn_implementation="eager")
# Frequencies that YaRN scales: of the four pairs of a head of 8 the first stays, the third and the fourth are divided, and the
# second is between, or each has its own place; and some rows stand beyond the original positions.
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, beta_fast=2.0, beta_slow=1.0, original_max_position_embeddings=32)
DEEPSEEK_V3 = dict(moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=4,
                   topk_group=2, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=12, qk_rope_head_dim=4,
                   qk_nope_head_dim=4, v_head_dim=8, num_key_value_heads=4, head_dim=4)
GPT_OSS = dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=16, swiglu_limit=0.5,
               rope_parameters=dict(rope_type="default", rope_theta=10000.0))
# What each family's config says beside these; the sizes are chosen so that windows, chunks and limits hold somewhere.
FAMILIES = {
    "Llama": dict(),
    "Llama, attention_bias": dict(attention_bias=True),
    "Qwen2": dict(tie_word_embeddings=True),
    "Llama, linear": dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "Qwen3": dict(),
    "Qwen3, yarn": dict(rope_parameters=YARN),
    "Qwen3Moe": dict(moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True),
    "Qwen2Moe": dict(moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=4, num_experts_per_tok=2),
    "SmolLM3": dict(num_hidden_layers=4, use_sliding_window=False),
    "Olmo2": dict(),
    "Mixtral": dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "Phi3": dict(),
    "Gemma2": dict(sliding_window=16, query_pre_attn_scalar=12),
    "Gemma3": dict(sliding_window=16, query_pre_attn_scalar=12, layer_types=["sliding_attention", "full_attention"],
                   rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=100.0, factor=4.0),
                                        sliding_attention=dict(rope_type="default", rope_theta=20.0))),
    "Llama4": dict(num_hidden_layers=4, intermediate_size_mlp=36, num_local_experts=4, num_experts_per_tok=1,
                   interleave_moe_layer_step=2, attention_chunk_size=16, floor_scale=8, attn_scale=0.5,
                   rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "GptOss": GPT_OSS,
    "GptOss, yarn": {**GPT_OSS, "rope_parameters": {**YARN, "truncate": False}},
    "DeepseekV3": DEEPSEEK_V3,
    "DeepseekV3, yarn": {**DEEPSEEK_V3, "qk_rope_head_dim": 8, "head_dim": 8,
                         "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
    "Glm4Moe": dict(moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=1,
                    topk_group=1, first_k_dense_replace=1, partial_rotary_factor=0.5, use_qk_norm=True, attention_bias=True),
    # Two key heads with two value heads each, and of four layers the last one attends, with gates.
    "Qwen3Next": dict(num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
                      linear_value_head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
                      shared_expert_intermediate_size=20),
    # Of four layers the second attends; the width of the MLP is 32, two thirds of 40 up to a multiple of 8.
    "Lfm2": dict(num_hidden_layers=4, layer_types=["conv", "full_attention", "conv", "conv"], block_multiple_of=8),
    "Lfm2, conv_bias": dict(layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False, conv_bias=True, conv_L_cache=4),
    # Transformers add 1e-6 to the sum that a token's weights are divided by, which moves such a loss by 1e-8 of itself.
    "Lfm2Moe": dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], moe_intermediate_size=12, num_experts=8,
                    num_experts_per_tok=2, num_dense_layers=1, routed_scaling_factor=2.5),
    "NemotronH": dict(num_hidden_layers=4, layers_block_type=["mamba", "moe", "attention", "mlp"], mamba_num_heads=4,
                      mamba_head_dim=8, ssm_state_size=6, n_groups=2, chunk_size=16, n_routed_experts=8, num_experts_per_tok=2,
                      moe_intermediate_size=12, moe_shared_expert_intermediate_size=20, routed_scaling_factor=2.5),
}
FAMILIES["DeepseekV3, kimi_k2"] = {**FAMILIES["DeepseekV3"], "n_group": 1, "topk_group": 1}
CORRECTION = ("e_score_correction_bias", "expert_bias")


def corrections(model):
    return {name: values for name, values in model.named_buffers() if name.endswith(CORRECTION)}


def classes(family):
    import transformers
    name = family.split(",")[0]
    config = getattr(transformers, f"{name}TextConfig" if name in ("Llama4", "Gemma3") else f"{name}Config")
    return config, getattr(transformers, f"{name}ForCausalLM")


def loss_of(model, tokens):
    import torch
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens[:-1]]), use_cache=False).logits.double()
        return float(torch.nn.functional.cross_entropy(logits[0], torch.tensor(tokens[1:])))


def compare(program, family, folder):
    import torch
    torch.manual_seed(1)
    config_class, model_class = classes(family)
    model = model_class(config_class(**{**COMMON, **FAMILIES[family]})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Of norms near what they begin with, so that one that is taken for another shows.
            parameter.copy_(parameter + 0.1 * torch.randn_like(parameter) if "norm" in name else 0.2 * torch.randn_like(parameter))
        for values in corrections(model).values():
            values.copy_(0.3 * torch.randn_like(values))
    theirs = folder / "theirs"
    model.save_pretrained(theirs)
    if ", kimi_k2" in family:
        config = json.loads((theirs / "config.json").read_text())
        (theirs / "config.json").write_text(json.dumps({**config, "model_type": "kimi_k2"}))
    tokens = torch.randint(0, VOCAB, (SEQUENCE + 1,)).tolist()
    (folder / "tokens.u16").write_bytes(array.array("H", tokens).tobytes())
    (folder / "train.txtpb").write_text(
        f'train {{ model: "{theirs}" init_from: "{theirs}" text: "{folder}/tokens.u16" evaluation: 0\n'
        f'  seq_len: {SEQUENCE} global_batch: 1 steps: 2 warmup_steps: 0 learning_rate: 1e-2\n'
        f'  save: "{folder}/ours" save_every: 1 keep: 2 }}')
    run = subprocess.run([program, "train", "--ranks-as-threads", folder / "train.txtpb", "--log", folder / "log"],
                         capture_output=True, text=True)
    if run.returncode != 0:
        return [f"cprun ended with {run.returncode}: {(run.stderr or run.stdout).strip()[-400:]}"]
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    first, second = [line["loss"] for line in lines if line["event"] == "step"]
    loaded, report = model_class.from_pretrained(folder / "ours" / "step-00000001", output_loading_info=True,
                                                 attn_implementation="eager", config=model.config)
    left = {what: sorted(report[what]) for what in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    findings = [f"{what}: {keys[:3]}" for what, keys in left.items() if keys]
    own = corrections(loaded)
    findings += [f"{name} is {own[name].tolist()} in cprun's checkpoint, and was {values.tolist()}"
                 for name, values in corrections(model).items() if not torch.equal(values, own[name])]
    for step, ours, expected in ((1, first, loss_of(model, tokens)), (2, second, loss_of(loaded.eval(), tokens))):
        if abs(ours - expected) > 2e-6 * expected:
            findings.append(f"the loss of step {step} is {ours} in cprun, and {expected} in Transformers")
    print(f"{family:24} {first:.6f} {second:.6f}", "" if findings else " equal", flush=True)
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("family", nargs="*", choices=[*FAMILIES, []])
    arguments = parser.parse_args()
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as missing:
        sys.exit(f"{missing}; pip install torch transformers")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    wrong = 0
    for family in arguments.family or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            for finding in compare(f"{arguments.bin}/cprun", family, pathlib.Path(folder)):
                wrong += 1
                print(f"{family}: {finding}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
