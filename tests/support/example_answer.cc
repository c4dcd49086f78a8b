#include "tests/support/example_answer.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"

namespace cp::testing {
namespace {

using namespace cp::sim;

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct AnswerRow {
  const char* layout;
  double step_s, memory_gib, nvlink, nic;
};

constexpr AnswerRow kRows[] = {
    {"tp=2,cp=8,strategy=ring,balance=head_tail,recompute=selective", 3.21, 62.4, 0.31, 0.22},
    {"tp=2,cp=8,strategy=ring,balance=head_tail,recompute=selective,order=cp-tp-dp-pp", 3.24, 62.4, 0.29,
     0.31},
    {"cp=16,strategy=ring,balance=head_tail,recompute=selective", 3.48, 71.9, 0.12, 0.44},
    {"tp=4,cp=4,strategy=ring,balance=head_tail,recompute=selective", 3.55, 58.8, 0.52, 0.16},
    {"tp=2,cp=8,strategy=ulysses,recompute=selective", 3.61, 64.0, 0.38, 0.05},
    {"tp=8,cp=2,strategy=ring,balance=head_tail", 3.79, 73.5, 0.71, 0.09},
    {"tp=4,cp=4,strategy=all_gather,balance=head_tail,recompute=selective", 3.83, 66.1, 0.49, 0.18},
    {"tp=2,cp=8,strategy=ring,balance=head_tail,recompute=full", 3.92, 38.7, 0.27, 0.18},
    {"tp=2,cp=4,dp_shard=2,strategy=ring,balance=head_tail,recompute=full", 3.97, 57.2, 0.33, 0.12},
    {"tp=8,cp=2,strategy=ulysses", 4.02, 74.8, 0.69, 0.04},
    {"tp=4,cp=2,dp_shard=2,strategy=ring,balance=head_tail,recompute=full", 4.11, 55.0, 0.55, 0.08},
    {"cp=8,dp_shard=2,strategy=ring,balance=head_tail,recompute=full", 4.18, 69.3, 0.11, 0.29},
    {"tp=4,cp=4,strategy=ring,balance=head_tail,recompute=full", 4.22, 34.2, 0.47, 0.13},
    {"tp=4,cp=2,pp=2,strategy=ring,balance=head_tail,recompute=selective", 4.37, 70.7, 0.46, 0.07},
    {"tp=8,dp_shard=2,recompute=full", 4.49, 48.6, 0.74, 0.06},
    {"tp=8,pp=2,recompute=selective", 4.66, 67.9, 0.70, 0.02},
    {"tp=8,cp=2,strategy=ring,balance=head_tail,recompute=full", 4.71, 29.8, 0.63, 0.07},
    {"cp=16,strategy=all_gather,balance=head_tail,recompute=full", 4.83, 52.1, 0.10, 0.61},
    {"tp=2,cp=4,pp=2,strategy=ring,balance=head_tail,recompute=full", 5.02, 44.5, 0.24, 0.09},
    {"cp=16,strategy=ring,balance=striped:1,recompute=full", 5.16, 49.9, 0.09, 0.33},
    {"tp=2,cp=8,strategy=need_only,balance=contiguous,recompute=full", 5.93, 41.3, 0.19, 0.14},
    {"cp=16,strategy=ring,balance=contiguous,recompute=full", 6.75, 50.2, 0.07, 0.25},
    {"tp=8,pp=2,virtual_stages=4,recompute=full", 7.10, 31.6, 0.46, 0.05},
    {"tp=16,recompute=full", 9.88, 27.3, 0.22, 0.82},
};

// Shares of the step by what the layout has; what is left goes to products, so that the parts add up.
std::vector<PartTime> parts_of(const ParallelLayout& l, double step_us, double best_us) {
  std::vector<PartTime> parts = {{TimePart::attention, 0.51 * best_us},
                                 {TimePart::other_kernels, 0.09 * best_us}};
  const auto add = [&](TimePart part, double share) {
    if (share > 0) parts.push_back({part, share * step_us});
  };
  add(TimePart::exposed_tp, l.tp > 1 ? 0.02 * l.tp : 0);
  add(TimePart::exposed_cp, l.cp > 1 ? 0.006 * l.cp : 0);
  add(TimePart::exposed_fsdp, 0.021);
  add(TimePart::bubble, l.pp > 1 ? 0.12 / l.virtual_stages : 0);
  add(TimePart::host, 0.008);
  double rest = step_us;
  for (const PartTime& part : parts) rest -= part.us;
  parts.insert(parts.begin() + 1, {TimePart::products, rest});
  return parts;
}

Memory memory_of_size(double gib, const ParallelLayout& l) {
  const auto bytes = [](double value) { return static_cast<std::int64_t>(value * kGiB); };
  const double sharding = l.sharding_size() * l.tp * l.pp;
  Memory m;
  m.parameters = bytes(30 / sharding);
  m.gradients = bytes(30 / sharding);
  m.optimizer = bytes(60 / sharding);
  m.unsharded = bytes(1.6 / l.tp);
  m.working = bytes(2.9 / l.tp);
  m.attention = bytes(1.2 / l.tp);
  m.logits = bytes(4.4 / l.tp);
  m.communicators = bytes(0.6);
  m.context = bytes(1.6);
  m.slack = bytes(0.03 * gib);
  m.activations = std::max(bytes(0.2), bytes(gib) - (m.used() - m.context));
  return m;
}

Candidate candidate_of(const AnswerRow& row, double best_s) {
  Candidate c;
  c.layout = parse_parallel_layout(row.layout);
  c.step_us = row.step_s * 1e6;
  c.low_us = 0.94 * c.step_us;
  c.high_us = 1.08 * c.step_us;
  c.chance = row.step_s < 3.3 ? 0.4 : row.step_s < 3.6 ? 0.05 : 0;
  c.regret_us = c.step_us - best_s * 1e6;
  c.tokens_per_s_per_gpu = 16 * 131072 / row.step_s / 16;
  c.mfu = 0.47 * best_s / row.step_s;
  c.parts = parts_of(c.layout, c.step_us, best_s * 1e6);
  for (const auto& [part, us] : c.parts) {
    if (is_exposed(part)) c.exposed_us += us;
  }
  RateTimes& chain = c.chains.emplace_back();
  for (const auto& [part, us] : c.parts) {
    Rate rate = Rate::memory;
    if (part == TimePart::attention) rate = Rate::attention_backward;
    if (part == TimePart::products) rate = Rate::products;
    if (part == TimePart::exposed_tp) rate = Rate::inside;
    if (part == TimePart::exposed_cp || part == TimePart::exposed_fsdp) rate = Rate::network;
    chain[rate] += us;
  }
  c.bound = c.layout.tp >= 8 ? TimePart::exposed_tp : TimePart::attention;
  c.memory = memory_of_size(row.memory_gib, c.layout);
  c.usable_bytes = static_cast<std::int64_t>(78.0 * kGiB);
  c.memory_low_bytes = static_cast<std::int64_t>(0.92 * row.memory_gib * kGiB);
  c.memory_high_bytes = static_cast<std::int64_t>(1.06 * row.memory_gib * kGiB);
  c.nvlink_utilisation = row.nvlink;
  c.nic_utilisation = row.nic;
  return c;
}

PlanQuestion example_question() {
  PlanQuestion q;
  Transformer& m = q.model;
  m.name = "Llama-3.1-8B";
  m.hidden = 4096;
  m.layers = 32;
  m.q_heads = 32;
  m.kv_heads = 8;
  m.head_dim = 128;
  m.intermediate = 14336;
  m.vocab = 128256;
  m.max_seq_len = 131072;
  q.model_source = "preset llama-3.1-8b";
  q.assumptions = {"tie_word_embeddings is not in the config: false, as the architecture's default.",
                   "The optimizer's states are kept in f32.", std::string(kAwkward)};
  q.workload.seq_len = 131072;
  q.workload.global_batch = 16;
  q.cluster = find_cluster("dgx-h100", 2);
  q.software = find_software("torchtitan");
  q.memory_width = {0.92, 1.06, 7};
  q.fixed.micro_batch = 1;
  q.baseline = PartialLayout{"tp=8,cp=2,strategy=ring,balance=head_tail", {}, std::nullopt};
  return q;
}

// Spans of one rank, one after the other on each stream: layers forward, then backward, ring steps of
// attention with their transfers beside them.
class RankSpans {
 public:
  RankSpans(int rank, std::vector<ReportSpan>& out) : rank_(rank), out_(out) {}

  void layer(int number, bool backward) {
    const double slow = backward ? 2.4 : 1;
    const std::string name = str(backward ? "backward " : "layer ", number);
    add("fsdp", str(name, ": all_gather weights"), SpanKind::fsdp, clock_, 310 * slow);
    compute(str(name, ": norm"), SpanKind::kernel, 26 * slow);
    communicate("tp", str(name, ": all_gather rows"), SpanKind::tp, 96);
    compute(str(name, ": q, k and v"), SpanKind::product, 270 * slow);
    for (int step = 0; step < 8; ++step) {
      if (step < 7) add("cp", str(name, ": ring shift ", step), SpanKind::cp, clock_, 160 * slow);
      compute(str(name, ": attention ", step), SpanKind::attention, (205 + 4 * rank_ % 9) * slow);
    }
    compute(str(name, ": output projection"), SpanKind::product, 180 * slow);
    communicate("tp", str(name, ": reduce_scatter rows"), SpanKind::tp, 104);
    compute(str(name, ": gate and up"), SpanKind::product, 610 * slow);
    compute(str(name, ": silu"), SpanKind::kernel, 60 * slow);
    compute(str(name, ": down"), SpanKind::product, 330 * slow);
    communicate("tp", str(name, ": reduce_scatter rows"), SpanKind::tp, 104);
    if (backward) add("fsdp", str(name, ": reduce_scatter gradients"), SpanKind::fsdp, clock_, 420);
  }
  double now() const { return clock_; }

 private:
  void compute(const std::string& label, SpanKind kind, double us) {
    add("compute", label, kind, clock_, us);
    clock_ += us + 1.5;
  }
  void communicate(const char* stream, const std::string& label, SpanKind kind, double us) {
    add(stream, label, kind, clock_, us);
    clock_ += us;
  }
  // Not before what is on the stream already.
  void add(const std::string& stream, const std::string& label, SpanKind kind, double begin, double us) {
    double& free = free_[static_cast<std::size_t>(stream == "compute" ? 0
                                                  : stream == "tp"    ? 1
                                                  : stream == "cp"    ? 2
                                                                      : 3)];
    begin = std::max(begin, free);
    free = begin + us;
    out_.push_back({rank_, stream, label, kind, begin, free});
  }

  int rank_;
  std::vector<ReportSpan>& out_;
  double clock_ = 0;
  std::vector<double> free_ = {0, 0, 0, 0};
};

std::vector<ReportSpan> example_timeline() {
  std::vector<ReportSpan> spans;
  for (const int rank : {0, 8}) {
    RankSpans of_rank(rank, spans);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      for (int i = 0; i < 32; ++i) of_rank.layer(i, false);
      for (int i = 31; i >= 0; --i) of_rank.layer(i, true);
    }
    spans.push_back(
        {rank, "compute", std::string(kAwkward), SpanKind::kernel, of_rank.now(), of_rank.now() + 9000});
  }
  return spans;
}

}  // namespace

PlanAnswer example_answer() {
  PlanAnswer answer;
  answer.question = example_question();
  for (const AnswerRow& row : kRows) {
    answer.all.push_back(candidate_of(row, kRows[0].step_s));
    answer.all.back().rank = static_cast<int>(answer.all.size());
  }
  answer.best.assign(answer.all.begin(), answer.all.begin() + 8);
  answer.classes = {{"pure CP", answer.all[2], "+212 ms exposed cp, +95 ms exposed fsdp, -38 ms exposed tp"},
                    {"TP + CP", answer.all[0], "the best"},
                    {"with PP", answer.all[13], "+524 ms bubble, +341 ms products"},
                    {"with EP", std::nullopt, "the model has no experts"},
                    {"baseline", answer.all[5], "+386 ms exposed tp, -29 ms exposed cp"}};
  answer.counts.enumerated = 31104;
  answer.counts.rejected = {
      {"batch does not divide", 12960}, {"world is not the GPUs", 9216}, {"strategy", 1152}};
  answer.counts.out_of_memory = 4213;
  answer.counts.pruned = 3539;
  answer.counts.replayed = static_cast<std::int64_t>(answer.all.size());
  answer.counts.seconds = 0.62;
  answer.published = {
      {"torchtitan llama3 h100 2024-12 table 2", "Llama-3.1-8B, 8 GPUs, cp 2, 65,536 tokens", "tokens/s/GPU",
       2860, 3011, true},
      {"torchtitan llama3 h100 2024-12 table 2", "Llama-3.1-8B, 8 GPUs, cp 4, 131,072 tokens", "tokens/s/GPU",
       2179, 2042, true},
      {"torchtitan llama3 h100 2024-12 table 2", "Llama-3.1-8B, 8 GPUs, cp 8, 262,144 tokens", "tokens/s/GPU",
       1471, 1397, true},
      {"Meta 2024-11 table 5", "Llama-3-405B, 16 GPUs, cp 2, 131,072 tokens", "prefill, s", 21.4, 20.6},
      {"Meta 2024-11 table 5", "Llama-3-405B, 32 GPUs, cp 4, 131,072 tokens", "prefill, s", 10.9, 11.7},
  };
  answer.nearest = answer.published[1];
  answer.timeline = example_timeline();
  answer.warnings = {"The software profile was measured on 8 GPUs; 16 are beyond it.", std::string(kAwkward)};
  answer.next_command =
      str("cpsim plan --model llama-3.1-8b --cluster dgx-h100 --nodes 2 --seq-len 131072 --explain '",
          to_string(answer.all[2].layout), "' # ", kAwkward);
  return answer;
}

}  // namespace cp::testing
