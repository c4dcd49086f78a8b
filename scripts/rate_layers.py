"""Rates of particular layers' kernels for scripts/rates: experts, attention in 8 bits, latent and linear attention.

Formulas are those of sim/cost/cluster/layer_rates.h. Each function takes the module `rates` (what scripts/rates has), the tables' folder and
the preset that it adds its rates and its left-out rows to.
"""

import functools
import math

import numpy as np
import pandas as pd

# What stays in sim/cost/presets/validation of the rows that were left out, of a GPU and kind of kernel.
SAMPLE = {"experts_16": 50, "experts_8": 50, "attention_8": 60, "latent": 40, "linear": 40}

TRITON_16 = "vllm_unquantizedfusedmoe_triton_tritonexperts"
TRITON_8_BLOCKS = "vllm_fp8moe_triton_tritonexperts"
FLASHINFER_16 = "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts"
FLASHINFER_8 = "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic"
HOPPER_EXPERTS = [("triton", 16, "vllm", "bfloat16", TRITON_16), ("triton", 8, "vllm", "fp8_block", TRITON_8_BLOCKS)]
BLACKWELL_EXPERTS = [("flashinfer", 16, "vllm", "bfloat16", FLASHINFER_16), ("flashinfer", 8, "vllm", "fp8", FLASHINFER_8)]
# TensorRT-LLM's tables of H100 to GB300 have calls two to five times as slow as others of nearly the same shape, for which no tile was
# tuned: a tenth of the rows. vLLM's have none.
EXPERTS = {
    "a100-sxm": [("cutlass", 16, "trtllm", "bfloat16", "moe_torch_flow")],
    "h100-sxm": HOPPER_EXPERTS, "h200-sxm": HOPPER_EXPERTS,
    "b200-sxm": BLACKWELL_EXPERTS, "b300-sxm": BLACKWELL_EXPERTS, "gb200": BLACKWELL_EXPERTS, "gb300": BLACKWELL_EXPERTS,
    "l40s": [("triton", 16, "vllm", "bfloat16", TRITON_16),
             ("triton", 8, "vllm", "fp8", "vllm_modeloptfp8moe_triton_tritonexperts")],
}
UNGATED_TOP_K = (6, 16, 22)  # of models whose experts have no gate
HOPPER_8 = [("trtllm", "trtllm", "torch_flow"), ("fa3", "sglang", "fa3")]
BLACKWELL_8 = [("trtllm", "trtllm", "torch_flow")]
ATTENTION_8 = {"h100-sxm": HOPPER_8, "h200-sxm": HOPPER_8, "b200-sxm": BLACKWELL_8, "b300-sxm": BLACKWELL_8,
               "gb200": BLACKWELL_8, "gb300": BLACKWELL_8, "l40s": BLACKWELL_8}
LATENT = {"l40s": ("triton", "sglang", "triton")}  # kernel, framework, its name there
LATENT_OF_OTHERS = ("trtllm", "trtllm", "default")
# A rate that misses half of the rows that it was not fitted to by more says nothing of its kernel: it is not written.
MOST_WRONG = 0.3


# ---- experts


def raised(counts, number, most):
    """The least of the counts get one more, `number` times; none gets above `most`."""
    ascending = np.sort(counts)
    cost = np.arange(1, len(ascending) + 1) * ascending - np.cumsum(ascending)
    lifted = int(np.searchsorted(cost, number, side="right"))
    level = min(ascending[lifted - 1] + (number - cost[lifted - 1]) // lifted, most)
    result = np.maximum(counts, level)
    left = int(number - (result - counts).sum())
    if left > 0:
        result[np.flatnonzero((result == level) & (result < most))[:left]] += 1
    return result


@functools.lru_cache(None)
def of_the_rank(tokens, experts, top_k, ep, skew):
    """(rows, experts with a row) of the rank that the tables measure: the first one where experts take turns, and with a power law the
    busiest one. What was drawn there is not known: the mean of eight draws."""
    own = experts // ep
    if skew == "balanced":
        stride = math.ceil(experts / top_k)
        each = np.arange(top_k)[None, :] * stride
        if tokens >= stride:
            chosen = (np.arange(tokens % experts)[:, None] + each) % experts
            counts = np.bincount(chosen.ravel(), minlength=experts)[:own] + tokens // experts * top_k
        else:
            chosen = ((np.arange(tokens)[:, None] * stride / tokens + each) % experts).astype(int)
            counts = np.bincount(chosen.ravel(), minlength=experts)[:own]
        return float(counts.sum()), float((counts > 0).sum())
    power = 1 - float(skew.split("_")[-1])
    least, most = (1, tokens * 0.8) if tokens * top_k > experts else (0.01, 2)
    draws = np.random.default_rng(0).random((8, experts))
    weights = ((most**power - least**power) * draws + least**power) ** (1 / power)
    rows = np.minimum(np.round(weights / weights.sum(1, keepdims=True) * tokens * top_k), tokens).astype(np.int64)
    results = []
    for counts in rows:
        missing = tokens * top_k - int(counts.sum())
        ranks = counts.reshape(ep, own)
        busiest = int(ranks.sum(1).argmax())
        number = abs(missing) // ep + (busiest < abs(missing) % ep)
        of_it = ranks[busiest]
        if number > 0:
            of_it = raised(of_it, number, tokens) if missing > 0 else -raised(-of_it, number, 0)
        results.append((of_it.sum(), (of_it > 0).sum()))
    return tuple(float(v) for v in np.mean(results, axis=0))


def expert_table(rates, tables, gpu, framework, dtype, source):
    path = tables / gpu.folder / "moe" / framework / gpu.versions[framework] / "moe_perf.parquet"
    f = pd.read_parquet(path)
    rates.check(f, path)
    f = f[(f.moe_dtype == dtype) & (f.kernel_source == source) & ~f.topk.isin(UNGATED_TOP_K)]
    f = f.assign(us=f.latency * rates.US_PER_MS, t=f.num_tokens, h=f.hidden_size, c=f.inter_size // f.moe_tp_size,
                 top=f.topk, e=f.num_experts, ep=f.moe_ep_size, skew=f.distribution)
    f = f[f.c >= 64].groupby(["t", "h", "c", "top", "e", "ep", "skew"], as_index=False).us.median()
    shares = [of_the_rank(*row) for row in zip(*(f[name] for name in ("t", "e", "top", "ep", "skew")))]
    return f.assign(rows=[s[0] for s in shares], active=[s[1] for s in shares])


def expert_us(rates, gpu, x, bits, all_rows, floor_us, tflops, startup_rows, startup_k, blend, memory_share, row_passes):
    t, h, c, top, rows, active = (x[name].to_numpy(float) for name in ("t", "h", "c", "top", "rows", "active"))
    operand, gb = bits / 8, gpu.hbm_gbps * 1e3

    def products(n, k):
        work = 2 * (rows + active * startup_rows) * n * (k + startup_k) / (tflops * 1e6)
        memory = (active * n * k * operand + rows * (k * operand + n * 2)) / (gb * memory_share)
        return rates.norm(work, memory, blend)

    moved = t * top if all_rows else rows
    passes = row_passes * 2 * (2 * moved * h + 2 * t * h + 3 * moved * c) / gb
    return floor_us + products(2 * c, h) + products(h, c) + passes


FITTED_ROWS = 20000  # of an expert rate; tables have up to five times as many


def add_experts(rates, tables, preset):
    gpu = preset.gpu
    for kernel, bits, framework, dtype, source in EXPERTS[preset.name]:
        x = expert_table(rates, tables, gpu, framework, dtype, source)
        out = rates.left_out(x, ("h", "c", "top", "e", "ep"))
        all_rows = framework == "vllm" and kernel == "triton"
        peak = gpu.tflops_16 * 16 / bits
        fitted = x[~out]
        if len(fitted) > FITTED_ROWS:
            fitted = fitted.sample(FITTED_ROWS, random_state=0)
        us = np.log(fitted.us.to_numpy(float))

        def parameters(p):
            floor, tflops, rows, k, blend, share, passes = np.exp(p)
            return rates.LAUNCH + floor, min(tflops, peak), rows, k, min(1 + blend, 20), min(share, 1.0), passes

        def residual(p):
            return np.log(expert_us(rates, gpu, fitted, bits, all_rows, *parameters(p))) - us

        start = np.log([10, peak / 2, 32, 100, 1, 0.8, 1])
        values = [rates.rounded(v) for v in parameters(rates.fit(residual, start))]
        rest = x[out]
        predicted = expert_us(rates, gpu, rest, bits, all_rows, *values)
        errors = rates.Errors(predicted, rest.us.to_numpy(float))
        for r in rest.itertuples():
            preset.keep_row("experts", f"experts_{bits}", [kernel, bits, r.t, r.top, r.e, r.ep, r.h, r.c, r.skew, f"{r.rows:.6g}",
                                                           f"{r.active:.6g}", f"{r.us:.6g}"])
        preset.add("experts {\n" + "\n".join(
            [f"  kernel: \"{kernel}\"", f"  bits: {bits}", f"  floor_us: {values[0]}", f"  tflops: {values[1]}",
             f"  startup_rows: {values[2]}", f"  startup_k: {values[3]}", f"  blend: {values[4]}", f"  memory_share: {values[5]}",
             f"  row_passes: {values[6]}"] + (["  all_rows: true"] if all_rows else []) +
            ["  origin: published",
             f"  source: \"{rates.source_of(gpu, framework, source)}, {dtype}; {len(fitted)} rows, uniform and power law\"",
             f"  {errors.text()}"]) + "\n}\n")
        print(f"{preset.name} experts {kernel} {bits}: {values} {errors.text()}", flush=True)
        for skew in sorted(rest["skew"].unique()):
            of_it = (rest["skew"] == skew).to_numpy()
            print(f"    {skew}: {rates.Errors(predicted[of_it], rest.us.to_numpy(float)[of_it]).text()}")


# ---- attention in 8 bits


def add_attention_8(rates, tables, preset):
    gpu = preset.gpu
    for kernel, framework, source in ATTENTION_8.get(preset.name, []):
        for head_dim in rates.HEAD_DIMS:
            table = rates.attention_table(tables, gpu, framework, "context", head_dim, source, "fp8")
            if table is None:
                continue
            x = table[(table.s >= 16) & (table.w == 0)].reset_index(drop=True)
            if len(x) < 200:
                continue
            out = rates.left_out(x, ("b", "h", "k"))
            form, values = rates.fit_attention(gpu, head_dim, x[~out])
            # Without a table of calls that write no cache, what these spend on it is taken as that of the same kernel in 16 bits: none.
            errors = rates.Errors(form.us(x[out], *values), x.us.to_numpy(float)[out])
            for r in x[out].itertuples():
                preset.keep_row("attention_8", "attention_8", ["prefill", kernel, head_dim, r.b, r.s, r.s, r.h, r.k, 0, "", "", "", f"{r.us:.6g}"])
            preset.add("attention {\n" + "\n".join(
                [f"  kernel: \"{kernel}\"", f"  head_dim: {head_dim}", "  bits: 8", f"  floor_us: {values[0]}", f"  tflops: {values[1]}",
                 f"  startup_keys: {values[2]}", f"  tile_rows: {form.tile_rows}",
                 f"  shared_tiles: {'true' if form.shared_tiles else 'false'}", f"  blend: {values[3]}", f"  cache_passes: {values[4]}",
                 *rates.resident_lines(values[5]),
                 "  origin: published",
                 f"  source: \"{rates.source_of(gpu, framework, source)}, fp8; {int((~out).sum())} rows\"", f"  {errors.text()}"]) + "\n}\n")
            print(f"{preset.name} attention in 8 bits {kernel} {head_dim}: {values} {errors.text()}", flush=True)


# ---- latent attention

CONTEXT_DIMS, DECODE_DIMS = (192, 128), (576, 512)


def latent_us(rates, gpu, x, decode, cache_bits, tile_rows, floor_us, tflops, startup_keys, blend, last):
    """`last`: memory_share of decoding, cache_passes of a context."""
    b, keys, h = (x[name].to_numpy(float) for name in ("b", "keys", "h"))
    gb = gpu.hbm_gbps * 1e3
    qk, v = DECODE_DIMS if decode else CONTEXT_DIMS
    us_per_pair = 2 * (qk + v) / (tflops * 1e6)
    if decode:
        work = b * np.maximum(h, tile_rows) * (keys + startup_keys) * us_per_pair
        return floor_us + rates.norm(work, b * (keys + startup_keys) * qk * cache_bits / 8 / (gb * last), blend)
    pairs = keys * (keys + 1) / 2
    work = b * h * np.maximum(keys, tile_rows) * (pairs / keys + startup_keys) * us_per_pair
    longest = (keys + startup_keys) * tile_rows * us_per_pair * gpu.sms
    return floor_us + rates.norm(work, longest, blend) + last * b * keys * h * (qk + v) * 2 / gb


def add_latent(rates, tables, preset):
    gpu = preset.gpu
    kernel, framework, kernel_source = LATENT.get(preset.name, LATENT_OF_OTHERS)
    for decode in (False, True):
        path = tables / gpu.folder / "mla" / framework / gpu.versions[framework] / f"{'generation' if decode else 'context'}_mla_perf.parquet"
        f = pd.read_parquet(path)
        rates.check(f, path)
        for cache_bits, dtype in ((16, "bfloat16"), (8, "fp8")):
            if cache_bits == 8 and not gpu.fp8:
                continue
            x = f[(f.mla_dtype == "bfloat16") & (f.kv_cache_dtype == dtype) & (f.kernel_source == kernel_source)]
            if len(x) == 0:
                continue
            x = x.assign(us=x.latency * rates.US_PER_MS, b=x.batch_size, h=x.num_heads, keys=x.step + 1 if decode else x.isl)
            x = x[x["keys"] >= (64 if decode else 16)].groupby(["b", "keys", "h"], as_index=False).us.median()
            out = rates.left_out(x, ("b", "h"))
            us, best = np.log(x.us.to_numpy(float)), None
            peak = gpu.tflops_16 * 16 / cache_bits
            for tile_rows in (16, 32, 64) if decode else (64, 128, 256):
                def parameters(p):
                    floor, tflops, keys, blend, last = np.exp(p)
                    return rates.LAUNCH + floor, min(tflops, peak), keys, min(1 + blend, 20), min(last, 1.0) if decode else last

                def residual(p):
                    return (np.log(latent_us(rates, gpu, x, decode, cache_bits, tile_rows, *parameters(p))) - us)[~out]

                p = rates.fit(residual, np.log([8, gpu.tflops_16 / 2, 200, 0.5, 0.7]))
                e = np.abs(np.expm1(residual(p)))
                score = np.median(e) + np.percentile(e, 90) / 2
                if best is None or score < best[0]:
                    best = score, tile_rows, [rates.rounded(v) for v in parameters(p)]
            _, tile_rows, values = best
            rest = x[out]
            errors = rates.Errors(latent_us(rates, gpu, rest, decode, cache_bits, tile_rows, *values), rest.us.to_numpy(float))
            print(f"{preset.name} latent {'decode' if decode else 'context'} {cache_bits}: tile {tile_rows} {values} {errors.text()}",
                  flush=True)
            if errors.median > MOST_WRONG:
                continue
            for r in rest.itertuples():
                preset.keep_row("latent_attention", "latent", [kernel, "decode" if decode else "context", cache_bits, r.b, r.keys, r.h,
                                                               f"{r.us:.6g}"])
            qk, v = DECODE_DIMS if decode else CONTEXT_DIMS
            preset.add("latent {\n" + "\n".join(
                [f"  kernel: \"{kernel}\""] + (["  decode: true"] if decode else []) +
                [f"  cache_bits: {cache_bits}", f"  qk_dim: {qk}", f"  v_dim: {v}", f"  floor_us: {values[0]}", f"  tflops: {values[1]}",
                 f"  startup_keys: {values[2]}", f"  tile_rows: {tile_rows}", f"  blend: {values[3]}",
                 f"  {'memory_share' if decode else 'cache_passes'}: {values[4]}",
                 "  origin: published",
                 f"  source: \"{rates.source_of(gpu, framework, kernel_source)}, {path.stem}, bfloat16 with a cache in {dtype}; {int((~out).sum())} rows\"",
                 f"  {errors.text()}"]) + "\n}\n")


# ---- linear attention

STATE_BYTES, CHANNELS_AT_ONCE, GATED_DIM = 4, 128, 128
CONVOLUTIONS = ("causal_conv1d_fn", "causal_conv1d_update")


def linear_tables(preset):
    """(kernel, decode, framework, table, kernel's name there); where a GPU has none, the next one of the same kernel."""
    delta = "chunk_gated_delta_rule"
    if preset.name == "a100-sxm":
        return [("gated_delta", True, "sglang", "gdn", "fused_recurrent_gated_delta_rule"),
                ("convolution", False, "sglang", "gdn", CONVOLUTIONS[0]), ("convolution", True, "sglang", "gdn", CONVOLUTIONS[1])]
    packed = "fused_recurrent_gated_delta_rule_packed_decode"
    flashinfer = [] if preset.name == "l40s" else [("gated_delta_flashinfer", False, "vllm", "gdn", delta + "_flashinfer")]
    return flashinfer + [
        ("gated_delta", False, "sglang", "gdn", delta), ("gated_delta", True, "sglang", "gdn", packed),
        ("convolution", False, "sglang", "gdn", CONVOLUTIONS[0]), ("convolution", True, "sglang", "gdn", CONVOLUTIONS[1]),
        ("convolution_mamba", False, "trtllm", "mamba2", CONVOLUTIONS[0]),
        ("convolution_mamba", True, "trtllm", "mamba2", CONVOLUTIONS[1])]


def linear_table(rates, tables, gpu, framework, table, source):
    path = tables / gpu.folder / "linear_attention" / framework / gpu.versions[framework] / f"{table}_perf.parquet"
    f = pd.read_parquet(path)
    rates.check(f, path)
    f = f[f.kernel_source == source]
    f = f.assign(us=f.latency * rates.US_PER_MS, b=f.batch_size, s=f.seq_len)
    if table == "mamba2":
        f = f.assign(kh=0, vh=0, ch=f.nheads * f.head_dim + 2 * f.n_groups * f.d_state)
    else:
        f = f.assign(kh=f.num_k_heads, vh=f.num_v_heads, ch=(2 * f.num_k_heads + f.num_v_heads) * GATED_DIM)
    return f.groupby(["b", "s", "kh", "vh", "ch"], as_index=False).us.median()


def linear_us(rates, gpu, x, convolution, tile_rows, at_once, floor_us, token_us, blend, memory_share, stage_bytes=0.0, resident=None):
    b, s, kh, vh, ch = (x[name].to_numpy(float) for name in ("b", "s", "kh", "vh", "ch"))
    rows = np.maximum(s, tile_rows)
    chains = b * ch / CHANNELS_AT_ONCE if convolution else b * vh
    token = 4 * ch if convolution else 2 * GATED_DIM * 2 * (kh + vh)
    state = 12 * ch if convolution else 2 * STATE_BYTES * vh * GATED_DIM * GATED_DIM
    moved = b * (rows * token + state) + chains * rows * stage_bytes
    memory = rates.memory_us(moved, gpu.hbm_gbps * 1e3 * memory_share, resident)
    return floor_us + rates.norm(np.ceil(chains / (gpu.sms * at_once)) * rows * token_us, memory, blend)


def add_linear(rates, tables, preset):
    gpu = preset.gpu
    for kernel, decode, framework, table, source in linear_tables(preset):
        x = linear_table(rates, tables, gpu, framework, table, source)
        convolution = "convolution" in kernel
        out = rates.left_out(x, ("b", "kh", "vh", "ch"))
        us, best = np.log(x.us.to_numpy(float)), None
        stages = kernel == "gated_delta" and not decode
        for tile_rows, at_once in [(1, 1)] if decode else [(t, n) for t in (1, 16) for n in (4, 64)] if stages else [(n, 1) for n in (1, 64, 128, 512)]:
            def parameters(p):
                floor, token, blend, share, stage, mib, speed = np.exp(p)
                resident = (mib, min(1 + speed, 20)) if gpu.cache_mib else None
                return 0.5 + floor, token, min(1 + blend, 20), min(share, 1.0), stage if stages else 0.0, resident

            def residual(p):
                return (np.log(linear_us(rates, gpu, x, convolution, tile_rows, at_once, *parameters(p))) - us)[~out]

            p = rates.fit(residual, np.log([8, 0.01, 1, 0.5, 500, gpu.cache_mib or 1, 3]))
            e = np.abs(np.expm1(residual(p)))
            score = np.median(e) + np.percentile(e, 90) / 2
            if best is None or score < best[0]:
                best = score, tile_rows, at_once, rates.three_digits(parameters(p))
        _, tile_rows, at_once, values = best
        if values[1] < 1e-6:
            values[1] = 0
        rest = x[out]
        errors = rates.Errors(linear_us(rates, gpu, rest, convolution, tile_rows, at_once, *values), rest.us.to_numpy(float))
        print(f"{preset.name} linear {kernel} {'decode' if decode else 'context'}: tile {tile_rows} {values} {errors.text()}", flush=True)
        if errors.median > MOST_WRONG:
            continue
        for r in rest.itertuples():
            preset.keep_row("linear_attention", "linear", [kernel, "decode" if decode else "context", r.b, r.s, r.kh, r.vh, r.ch, f"{r.us:.6g}"])
        preset.add("linear {\n" + "\n".join(
            [f"  kernel: \"{kernel}\""] + (["  decode: true"] if decode else []) +
            [f"  floor_us: {values[0]}", f"  token_us: {values[1]}", f"  tile_rows: {tile_rows}", f"  blend: {values[2]}",
             f"  memory_share: {values[3]}"] + ([f"  chains_at_once: {at_once}", f"  stage_bytes: {values[4]}"] if stages else []) +
            rates.resident_lines(values[5]) +
            ["  origin: published",
             f"  source: \"{rates.source_of(gpu, framework, source)}, {table}; {int((~out).sum())} rows\"", f"  {errors.text()}"]) + "\n}\n")


KINDS = {"experts": add_experts, "attention_8": add_attention_8, "latent": add_latent, "linear": add_linear}
# Columns of the tables in sim/cost/presets/validation, after the GPU.
COLUMNS = {
    "experts": "kernel,bits,tokens,top_k,experts,ep,hidden,columns,skew,rows,active,microseconds",
    "attention_8": "kind,kernel,head_dim,batch,rows,keys,q_heads,kv_heads,window,m,n,k,microseconds",
    "latent_attention": "kernel,phase,cache_bits,batch,keys,heads,microseconds",
    "linear_attention": "kernel,phase,batch,tokens,key_heads,value_heads,channels,microseconds",
}
