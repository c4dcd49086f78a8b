// Memory that is read from plans is what they declare, and the least that a search goes by is below it and
// near.
#include "shared/transformer/memory_reading.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/transformer/least_memory.h"
#include "tests/transformer/step_requests.h"

namespace cp {
namespace {

// Of what implementations add, nothing.
MemoryRules plain_rules(const StepRequest& request) {
  MemoryRules rules;
  rules.loss_f32_copies = 0;
  rules.served_layer_bytes = static_cast<double>(size_bytes(request.workload.dtype));
  return rules;
}

StepRequest llama(const char* layout, std::int64_t seq_len = 8192) {
  StepRequest request{{}, {}, parse_parallel_layout(layout)};
  Transformer& model = request.model;  // Llama-3.1-8B
  model.hidden = 4096, model.layers = 32, model.q_heads = 32, model.kv_heads = 8, model.head_dim = 128;
  model.intermediate = 14336, model.vocab = 128256;
  request.workload.seq_len = seq_len, request.workload.global_batch = 8;
  return request;
}

std::int64_t callers_bytes(const Plan& plan, std::string_view term) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::temporary && buffer.name.starts_with(term)) bytes += buffer.bytes();
  }
  return bytes;
}

// ---- by hand ----

constexpr std::int64_t kLlamaRows = 8192, kLlamaHidden = 4096, kLlamaColumns = 14336;
constexpr std::int64_t kLlamaPositions = kLlamaRows * 128 * 4;  // sines and cosines

// One rank with all parameters: 8,030,261,248 in bf16, in f32, with gradients in f32 and two states in f32;
// sines and cosines of 8,192 positions, 128 of each; ids, labels and losses, 4 bytes a token each; the weight
// of a loss, the learning rate, the number of the step and the norm, 4 bytes each; and the arena of the
// micro-batch, which is larger than that of the update.
TEST(MemoryReading, OfOneRankByHand) {
  const StepRequest request = llama("micro_batch=2");
  const Memory memory = memory_of(request, plain_rules(request));
  constexpr std::int64_t kParameters = 8030261248;
  EXPECT_EQ(memory.parameters, kParameters * 2);
  EXPECT_EQ(memory.master, kParameters * 4);
  EXPECT_EQ(memory.gradients, kParameters * 4);
  EXPECT_EQ(memory.optimizer, kParameters * 8);
  const Plan step = step_plan(request, StepPart::micro_batch, 0, 0);
  EXPECT_EQ(memory.allocated(),
            kParameters * 18 + kLlamaPositions + 24 * kLlamaRows + 4 * 4 + step.arena_bytes);
  // The inputs of 33 layers, and of each norms, q, k, v, out, lse, mid, gate, up and their product.
  const std::int64_t tokens = 2 * kLlamaRows, input = kLlamaHidden * 2,
                     kept = (5 * kLlamaHidden + kLlamaHidden / 2 + 3 * kLlamaColumns) * 2 + 128;
  EXPECT_EQ(memory.activations, kLlamaPositions + tokens * (33 * input + 32 * kept));
}

// Four stages in 1F1B: the first one keeps four micro-batches for their backward passes, each with what is
// handed on, in whose place its gradient comes back. The last one's loss and the first one's layers both need
// less than what all passes keep.
TEST(MemoryReading, OfStagesByHand) {
  const StepRequest request = llama("pp=4");
  const Plan forward = step_plan(request, StepPart::forward, 0, 0),
             backward = step_plan(request, StepPart::backward, 0, 0),
             update = step_plan(request, StepPart::update, 0, 0);
  const std::int64_t kept = callers_bytes(backward, "activations/") - kLlamaPositions;
  EXPECT_EQ(kept, callers_bytes(forward, "activations/") - kLlamaPositions);
  const Memory memory = memory_of(request, plain_rules(request));
  const std::int64_t parameters = callers_bytes(update, "parameters/");
  // The learning rate, the number of the step and the norm: 4 bytes each.
  EXPECT_EQ(memory.allocated(), parameters * (2 + 4 + 4 + 8) / 2 + kLlamaPositions + kLlamaRows * 4 + 3 * 4 +
                                    4 * kept + std::max(backward.arena_bytes, forward.arena_bytes));
}

// Of the layers of a stage with experts, four bytes for each expert, whatever shards parameters and however
// many parts of the step read them.
TEST(MemoryReading, HasCorrectionsOfScoresOnce) {
  for (const char* layout : {"dp_shard=4,recompute=full", "pp=2,dp_shard=2", "pp=2,virtual_stages=2,tp=2"}) {
    StepRequest request = testing::small_request(layout);
    request.model.layers = 4, request.model.experts = Experts{8, 2, 24};
    request.workload.global_batch *= 2;
    const MemoryRules rules = plain_rules(request);
    const Memory without = memory_of(request, rules);
    request.model.experts->corrects_scores = true;
    const Memory with = memory_of(request, rules);
    EXPECT_EQ(with.parameters, without.parameters + 4 / request.layout.pp * 8 * 4) << layout;
    EXPECT_EQ(with.allocated() - with.parameters, without.allocated() - without.parameters) << layout;
  }
}

// ---- what implementations add ----

TEST(MemoryReading, CopiesOfTheLossAreOfAChunk) {
  for (const int chunks : {1, 4}) {
    StepRequest request = llama("dp_shard=8,recompute=full", 32768);
    request.layout.loss_chunks = chunks;
    const auto with = [&](double copies) {
      MemoryRules rules;
      rules.loss_f32_copies = copies;
      return memory_of(request, rules).logits;
    };
    const std::int64_t logits = std::int64_t{32768} / chunks * 128256;
    EXPECT_EQ(with(3) - with(1), logits * 2 * 4);
    EXPECT_EQ(with(1) - with(0.5), logits * (4 - 2));  // the first takes the place of the gradient in bf16
  }
}

TEST(MemoryReading, OfServingCountsTheFormatsOfTheSoftware) {
  StepRequest request = llama("tp=2,micro_batch=4");
  request.workload.phase = Phase::decode, request.workload.cached = 8191, request.workload.new_tokens = 1;
  request.workload.global_batch = 4;
  MemoryRules rules = plain_rules(request);
  const Memory in_16 = memory_of(request, rules);
  // Embedding, head and the last norm.
  constexpr std::int64_t kEnds = kLlamaHidden * (2 * 128256 + 1);
  rules.served_layer_bytes = 1;
  EXPECT_EQ(in_16.parameters - memory_of(request, rules).parameters,
            (in_16.parameters - kEnds / 2 * 2 - 4096) / 2);
  rules.cached_bytes = 1;
  EXPECT_EQ(memory_of(request, rules).kv_cache * 2, in_16.kv_cache);
  EXPECT_EQ(in_16.kv_cache, std::int64_t{4} * 8192 * 32 * 2 * 8 / 2 * 128 * 2);
  EXPECT_GE(in_16.logits, std::int64_t{4} * 128256 / 2 * 4);
}

TEST(MemoryReading, KnowsWhichPartsWereRead) {
  const StepRequest request = llama("pp=2");
  const MemoryRules rules;
  MemoryReading reading(request, rules);
  reading.add(StepPart::forward, 0, memory_of_plan(step_plan(request, StepPart::forward, 0, 0)));
  EXPECT_TRUE(reading.has(StepPart::forward, 0));
  EXPECT_FALSE(reading.has(StepPart::backward, 0));
}

// Rows that do not divide: the last rank attends most and has one row less, so the first one is read, too.
TEST(MemoryReading, IsOfTheRankWithMostRows) {
  StepRequest request = llama("cp=4,strategy=all_gather,balance=contiguous", 8190);
  const MemoryRules rules = plain_rules(request);
  const Rank busiest = busiest_rank(request, 0);
  EXPECT_EQ(busiest, 3);
  MemoryReading of_busiest(request, rules), of_first(request, rules);
  for (const StepPart part : parts_of(request)) {
    of_busiest.add(part, 0, memory_of_plan(step_plan(request, part, 0, busiest)));
    of_first.add(part, 0, memory_of_plan(step_plan(request, part, 0, 0)));
  }
  EXPECT_GT(of_first.memory().used(), of_busiest.memory().used());
  EXPECT_EQ(memory_of(request, rules).used(), of_first.memory().used());
}

// ---- what plans declare, and the least of it ----

RC_GTEST_PROP(MemoryReading, IsWhatPlansDeclare, ()) {
  StepRequest request = testing::any_request();
  RC_PRE(request.layout.pp == 1 && request.workload.phase == Phase::training);
  showValue(request, RC_LOG());
  const MemoryRules rules = plain_rules(request);
  MemoryReading reading(request, rules);
  std::map<std::string, std::int64_t> callers;
  std::int64_t arena = 0;
  for (const StepPart part : parts_of(request)) {
    const Plan plan = step_plan(request, part, 0, busiest_rank(request, 0));
    reading.add(part, 0, memory_of_plan(plan));
    arena = std::max(arena, plan.arena_bytes + plan.symmetric_bytes);
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.kind == BufferKind::temporary || buffer.name.starts_with("host/")) continue;
      std::int64_t& bytes = callers[buffer.name];
      bytes = std::max(bytes, buffer.bytes());
    }
  }
  std::int64_t declared = arena;
  for (const auto& [name, bytes] : callers) declared += bytes;
  RC_ASSERT(reading.memory().allocated() == declared);
}

RC_GTEST_PROP(LeastMemory, IsNoMoreThanPlansNeed, ()) {
  const StepRequest request = testing::any_request();
  showValue(request, RC_LOG());
  const MemoryRules rules = plain_rules(request);
  const Memory least = least_memory_of(request.model, request.workload, request.layout, rules),
               memory = memory_of(request, rules);
  const auto of_least = terms(least), of_memory = terms(memory);
  for (std::size_t i = 0; i < of_least.size(); ++i) {
    RC_LOG() << "\n"
             << of_least[i].first << ": " << of_least[i].second << " at least, " << of_memory[i].second;
  }
  // Where rows do not divide, it is not one rank that has most rows, most keys and the most of what is kept
  // of them: a row or two of each, of five or more.
  const bool even = request.workload.seq_len % (std::int64_t{2} * request.layout.cp) == 0;
  RC_ASSERT(static_cast<double>(least.allocated()) <=
            (even ? 1 : 1.02) * static_cast<double>(memory.allocated()));
}

// One LeastMemory keeps what layouts have in common that differ in loss_chunks alone.
RC_GTEST_PROP(LeastMemory, AskedOfManyLayoutsIsThatOfEach, ()) {
  const StepRequest request = testing::any_request();
  showValue(request, RC_LOG());
  const MemoryRules rules = plain_rules(request);
  LeastMemory of_many(request.model, request.workload, rules);
  ParallelLayout layout = request.layout;
  for (const int micro_batches : {1, 2, 1}) {
    layout.micro_batch = request.layout.micro_batch * micro_batches;
    for (const int loss_chunks : {1, 2, 3}) {
      layout.loss_chunks = loss_chunks;
      if (refuse(request.model, request.workload, layout)) continue;
      RC_ASSERT(terms(of_many.of(layout)) ==
                terms(least_memory_of(request.model, request.workload, layout, rules)));
    }
  }
}

// Of real sizes, so that a search makes plans of few layouts that do not fit.
TEST(LeastMemory, IsNearWhatPlansNeed) {
  std::vector<double> shares;
  for (const char* layout :
       {"dp_shard=8", "tp=8", "tp=2,dp_shard=4,zero=1", "cp=4,strategy=ring,balance=head_tail,dp_shard=2",
        "cp=8,strategy=ulysses", "cp=4,strategy=all_gather,dp_shard=2", "tp=2,cp=4,strategy=pass_q",
        "pp=4,dp_shard=2", "pp=2,tp=2,cp=2,strategy=ring,virtual_stages=2", "dp_replicate=2,tp=4"}) {
    for (const char* recompute : {"none", "selective", "full"}) {
      for (const bool experts : {false, true}) {
        for (const int chunks : {1, 8}) {
          StepRequest request = llama(layout, 16384);
          if (experts) request.model.experts = Experts{8, 2, 14336};
          request.layout.recompute = parse_recompute(recompute), request.layout.loss_chunks = chunks;
          const MemoryRules rules = plain_rules(request);
          const Memory least = least_memory_of(request.model, request.workload, request.layout, rules),
                       memory = memory_of(request, rules);
          shares.push_back(static_cast<double>(least.allocated()) / static_cast<double>(memory.allocated()));
          EXPECT_LE(shares.back(), 1) << to_string(request.layout);
        }
      }
    }
  }
  std::sort(shares.begin(), shares.end());
  EXPECT_GE(shares[shares.size() / 2], 0.95);
  EXPECT_GE(shares.front(), 0.75);
}

}  // namespace
}  // namespace cp
