// A PlanAnswer as JSON: what `cpsim plan --json` prints and what the report shows.
//
// Keys keep their names and meanings; later versions may add new ones. A name ends with its unit. Shares are
// in [0, 1]. What is unknown or not given is null. Texts are UTF-8: bytes that are not become U+FFFD.
//
//   schema         "cpsim.plan/1"
//   summary        the answer in one sentence, as headline() gives it
//   question
//     model        name, source, hidden, layers, q_heads, kv_heads, head_dim, intermediate, vocab,
//                  max_seq_len (0: unknown), tied_embeddings, qkv_bias, qk_norm, qk_norm_of_all_heads,
//                  norms_before, norms_behind, parallel_blocks, sinks, softcap (of attention's scores;
//                  null: none), gated_attention, gated_mlp,
//                  latent (null, or q_rank, kv_rank, rope_dim, v_head_dim),
//                  recurrence (null, or rule, key_heads, value_heads, key_dim, value_dim, convolution,
//                  convolution_bias), convolution (null, or taps, bias), window (of all layers; null if they
//                  differ), layer_kinds [{layers, window, chunk, mixer ("attention", "recurrence",
//                  "convolution", "none"), mlp ("dense", "experts", "none")}],
//                  experts {count, top_k, intermediate, shared}, prediction_layers (planned), parameters,
//                  active_parameters
//     workload     phase, seq_len, global_batch, cached, new_tokens, dtype, linear_dtype, attention_dtype,
//                  kv_dtype, aggregated ("spread", "together", null), gradient_dtype, optimizer,
//                  expert_imbalance, attention_dropout, cu_seqlens (of the documents of each sequence; empty:
//                  it is one)
//     cluster      name, nodes, gpus, gpu, values [value]
//     software     name, values [value]
//     frameworks   whose words the search keeps to
//     memory_width low, high (factors of the prediction between which measured memory lies), rows
//     fixed        what the search must not vary, by the keys of a layout's fields; empty: nothing
//     max_memory_gib, max_ttft_ms, baseline (as it was typed), top
//     assumptions  [text]
//     value:       field ("gpu.hbm_gbps"), value (number, flag, text; a curve: its [x, y] points), origin
//                  ("measured", "published", "estimated", "assumed", "borrowed"; null: a default),
//                  source (text)
//   best, all      [candidate], in order of time
//   classes        [{name, candidate or null, why, found}]; found: what the search chose for keys that a
//     baseline does not give
//     candidate:   layout (text, as --baseline takes it), layout_fields, rank, step_us, low_us, high_us,
//                  chance, regret_us, ttft_us (decode: of best, classes and the first of all; with aggregated
//                  or max_ttft_ms of all; else null), tokens_per_s_per_gpu, mfu, exposed_us, bound,
//                  parts_us {name: number}, memory_bytes {each term, allocated, reserved, used, counted: used
//                  without the context, which is what usable_bytes limits}, usable_bytes, left_bytes,
//                  memory_low_bytes, memory_high_bytes (of counted), fits ("likely", "unlikely": measured
//                  runs took more; "no"), nvlink_utilisation, nic_utilisation
//     layout_fields: gpus, dp_replicate, dp_shard, cp, tp, pp, ep, virtual_stages, strategy ("ring
//                  head_tail"; null without cp), core, balance, ulysses_degree, inner_ring, slots, pieces,
//                  merges, window_strategy, window_balance (null: that of all layers), scan, scan_balance
//                  (the same), keys, sharding, order, micro_batch, recompute, loss_chunks, mlp_chunks,
//                  zero, sequence_parallel, activations
//   worth_trying   [layout (text)]
//   worths         [{rate, us}]: by how much a step is expected to become shorter if this rate is known; the
//                  largest first
//   strategies_worth_us  the same if the attention of a layer is timed with each strategy
//   counts         enumerated, rejected [{reason, count}], out_of_memory, pruned, replayed, seconds
//   nearest        a published row; null: no step of this phase was ever compared with a measurement
//   published      [{source, what, metric, measured, predicted, error, unscored}]; error: of the time,
//                  whatever the metric, positive where the prediction is slower; unscored: why a row does not
//                  count, or empty
//   timeline       of the best: labels [text], kinds [text], tracks [{rank, stream, spans [[begin_us, end_us,
//                  label, kind]]}], where label and kind are indices and spans are in order of their begin;
//                  times are rounded to nanoseconds
//   warnings       [text]: of the model, such as a key that looks misspelt; of the search, if it was
//                  interrupted
//   next_command   text
//   run_command    text: what trains the best layout, in small; empty if nothing does
#pragma once

#include <string>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// `indent` is the number of spaces for each level; with -1 all is in one line.
std::string to_json(const PlanAnswer& answer, int indent = 2);

}  // namespace cp::sim
