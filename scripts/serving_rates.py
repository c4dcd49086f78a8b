"""Rates of software that serves, for scripts/rates: products of stored operands, decoding from a cache in 8 bits, and all-reduces of the
software's own. sim/cost/cluster/serving_rates.h has the formulas; a fifth of the configurations stays out of each fit, as there."""

import numpy as np
import pandas as pd

FEW_ROWS = 256
MOST_FITTED = 4000  # rows of a fit
# Of products in 4 bits times of TensorRT-LLM's table go as k, however few columns there are, as if its kernels were not tuned. Which table
# to take the rows in sample of served_tokens.csv say: 19 % of median error by TensorRT-LLM's, 9 % by SGLang's.
PRODUCTS = (("bfloat16", "trtllm", 16), ("fp8", "trtllm", 8), ("nvfp4", "sglang", 4))
ALL_REDUCES = (("trtllm", None), ("vllm", "vLLM_custom_graph"), ("sglang", "SGLang_CustomAllReduce_graph"))
WITHOUT_NVLINK = ("l40s",)
NO_TILE = 1e-6  # us of a column: 8 ns of one with 8,192
GROUPS = (4, 16)  # query heads of a kv head, of the models that are served: at least, at most


def product_us(gpu, x, floor_us, tflops, us_per_k, blend, memory_share, operand):
    m, n, k = (x[c].to_numpy(float) for c in "mnk")
    memory = ((m + n) * k * operand + m * n * 2) / (gpu.hbm_gbps * 1e3 * memory_share)
    work, tile = 2 * m * n * k / (tflops * 1e6), k * us_per_k
    most = np.maximum(np.maximum(memory, work), tile)
    return floor_us + most * ((memory / most) ** blend + (work / most) ** blend + (tile / most) ** blend) ** (1 / blend)


def grid(table):
    """f(m, k): what lies between the points of a table, in logarithms of both."""
    table = table.groupby(["m", "k"], as_index=False).latency.median().pivot(index="m", columns="k", values="latency")
    ms, ks, us = np.log(table.index.to_numpy(float)), np.log(table.columns.to_numpy(float)), table.to_numpy() * 1e3

    def at(m, k):
        i, j = (np.clip(np.searchsorted(axis, np.log(v)) - 1, 0, len(axis) - 2) for axis, v in ((ms, m), (ks, k)))
        u, w = (np.clip((np.log(v) - axis[n]) / (axis[n + 1] - axis[n]), 0, 1) for axis, v, n in ((ms, m, i), (ks, k, j)))
        return (1 - u) * (1 - w) * us[i, j] + u * (1 - w) * us[i + 1, j] + (1 - u) * w * us[i, j + 1] + u * w * us[i + 1, j + 1]
    return at


def product_table(rates, tables, gpu, framework, dtype):
    version = gpu.versions[framework]
    path = tables / gpu.folder / "gemm" / framework / version / "gemm_perf.parquet"
    if not path.exists():
        return None
    f = pd.read_parquet(path)
    rates.check(f, path)
    f = f[(f.gemm_dtype == dtype) & (f.n >= 256) & (f.k >= 256)]
    if f.empty:
        return None
    source = f.kernel_source.mode().iloc[0]
    f = f[f.kernel_source == source]
    x = f.assign(us=f.latency * rates.US_PER_MS).groupby(["m", "n", "k"], as_index=False).us.median()
    if framework == "trtllm" and dtype == "fp8":
        # Its calls find the activations' scale and cast them, which calibrated checkpoints do not.
        for name in ("computescale", "scale_matrix"):
            casts = pd.read_parquet(tables / gpu.folder / "quantize" / framework / version / f"{name}_perf.parquet")
            x["us"] -= grid(casts[casts.quant_dtype == "fp8"])(x.m.to_numpy(float), x.k.to_numpy(float))
        source += ", less its computescale and scale_matrix"
        x = x[x.us > rates.LAUNCH]
    return x.reset_index(drop=True), source


def add_products(rates, tables, preset):
    gpu = preset.gpu
    for dtype, framework, bits in PRODUCTS:
        found = None if dtype == "fp8" and not gpu.fp8 else product_table(rates, tables, gpu, framework, dtype)
        if found is None:
            continue
        x, source = found
        out = rates.left_out(x, ("n", "k"))
        for few in (True, False):
            of_rows = x.m <= FEW_ROWS if few else x.m >= FEW_ROWS
            fitted = x[of_rows & ~out]
            fitted = fitted.sample(min(len(fitted), MOST_FITTED), random_state=0)
            us = np.log(fitted.us.to_numpy(float))

            def parameters(p):
                floor, tflops, per_k, blend, share = np.exp(p)
                return rates.LAUNCH + floor, tflops, per_k, 1 + blend, min(share, 1.0)

            def residual(p):
                return np.log(product_us(gpu, fitted, *parameters(p), bits / 8)) - us

            peak = (2.0 * fitted.m * fitted.n * fitted.k / fitted.us * 1e-6).quantile(0.95)
            fit = parameters(rates.fit(residual, np.log([3, peak, 0.0015, 1, 0.8])))
            floor, tflops, blend, share = (rates.rounded(v) for v in (fit[0], fit[1], fit[3], fit[4]))
            per_k = float(f"{fit[2]:.3g}") if fit[2] > NO_TILE else 0
            left = x[of_rows & out]
            errors = rates.Errors(product_us(gpu, left, floor, tflops, per_k, blend, share, bits / 8),
                                  left.us.to_numpy(float))
            preset.add("stored_product {\n" + "\n".join(
                [f"  bits: {bits}"] + (["  few_rows: true"] if few else []) +
                [f"  floor_us: {floor}", f"  tflops: {tflops}", f"  us_per_k: {per_k}", f"  blend: {blend}",
                 f"  memory_share: {share}",
                 "  origin: published",
                 f"  source: \"{rates.source_of(gpu, framework, source)}; {len(fitted)} rows\"", f"  {errors.text()}"]) + "\n}\n")
            print(f"{preset.name} stored product {dtype} {'few' if few else 'many'}: {fit} {errors.text()}", flush=True)


def add_decode(rates, tables, preset):
    gpu = preset.gpu
    for kernel, framework, kernel_source in gpu.kernels:
        for head_dim in (64, 128):
            path = tables / gpu.folder / "attention" / framework / gpu.versions[framework] / "generation_attention_perf.parquet"
            f = pd.read_parquet(path)
            rates.check(f, path)
            source = kernel_source.replace("prefill", "decode")
            f = f[(f.head_dim == head_dim) & (f.kernel_source == source) & (f.kv_cache_dtype == "fp8")]
            if "window_size" in f:
                f = f[f.window_size == 0]
            f = f.rename(columns={"batch_size": "b", "num_heads": "h", "num_key_value_heads": "k", "step": "cached"})
            group = f.h / f.k
            f = f[(f.cached >= 63) & (group >= GROUPS[0]) & (group <= GROUPS[1])]
            if len(f) < 200:
                continue
            x = f.assign(us=f.latency * rates.US_PER_MS).groupby(["b", "h", "k", "cached"], as_index=False).us.median()
            out = rates.left_out(x, ("b", "h", "k"))
            us = np.log(x.us.to_numpy(float))
            half = x.assign(k=x.k / 2)  # of decode_us, whose elements have 16 bits

            def parameters(p):
                floor, keys, share = np.exp(p)
                return rates.LAUNCH + floor, keys, min(share, 1.0)

            def residual(p):
                return (np.log(rates.decode_us(gpu, head_dim, half, *parameters(p))) - us)[~out]

            values = [rates.rounded(v) for v in parameters(rates.fit(residual, np.log([8, 100, 0.8])))]
            errors = rates.Errors(rates.decode_us(gpu, head_dim, half[out], *values), x.us.to_numpy(float)[out])
            preset.add("decode {\n" + "\n".join(
                [f"  kernel: \"{kernel}\"", f"  head_dim: {head_dim}", f"  floor_us: {values[0]}",
                 f"  startup_keys: {values[1]}", f"  memory_share: {values[2]}",
                 "  origin: published",
                 f"  source: \"{rates.source_of(gpu, framework, source)}, cache in fp8, {GROUPS[0]} to {GROUPS[1]} query heads a kv head; {int((~out).sum())} rows\"",
                 f"  {errors.text()}", "  cache_bits: 8"]) + "\n}\n")
            print(f"{preset.name} decode fp8 {kernel} {head_dim}: {values} {errors.text()}", flush=True)


def add_all_reduces(rates, tables, preset):
    gpu = preset.gpu
    if gpu.folder in WITHOUT_NVLINK:
        return
    for framework, wanted in ALL_REDUCES:
        folder = tables / gpu.folder / "comm" / framework
        versions = sorted(p.parent for p in folder.glob("*/custom_allreduce_perf.parquet")) if folder.exists() else []
        path = folder / gpu.versions[framework] / "custom_allreduce_perf.parquet"
        if not path.exists() and versions:
            path = versions[-1] / "custom_allreduce_perf.parquet"
        if not path.exists():
            continue
        f = pd.read_parquet(path)
        rates.check(f, path)
        if wanted is not None:
            f = f[f.kernel_source.str.endswith("_graph")]
        f = f[f.allreduce_dtype == "bfloat16"]
        for gpus, of_gpus in f.groupby("num_gpus"):
            # Sizes are in elements. Every second one; times that fall are noise, and take the one before.
            of_gpus = of_gpus.groupby("message_size", as_index=False).latency.median().sort_values("message_size")
            of_gpus = of_gpus[of_gpus.message_size >= 1024].iloc[::2]
            us = np.maximum.accumulate(of_gpus.latency.to_numpy() * rates.US_PER_MS)
            sizes = ", ".join(str(int(2 * s)) for s in of_gpus.message_size)
            times = ", ".join(f"{t:.4g}" for t in us)
            name = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}[framework]
            preset.add(f"all_reduce {{\n  kernel: \"{framework}\"\n  gpus: {int(gpus)}\n  bytes: [{sizes}]\n  us: [{times}]\n"
                       f"  origin: published\n  source: \"{rates.WHEEL}: {name} {path.parent.name}, {f.kernel_source.iloc[0]}\"\n}}\n")


def add(rates, tables, preset):
    add_decode(rates, tables, preset)
    add_products(rates, tables, preset)
    add_all_reduces(rates, tables, preset)
