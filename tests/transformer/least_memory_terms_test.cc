// Each term of the least memory, to the byte: what the plan's buffers hold where it has buffers for just
// that, else a count by hand of what lives at the moment that the term is about. Every part of every term is
// decisive in some row: nothing hides below a larger one.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/transformer/least_memory.h"
#include "shared/transformer/step_plan.h"

namespace cp {
namespace {

constexpr std::int64_t k16 = 2, kF32 = 4;  // bytes

// Nothing needs padding: all sizes divide by all degrees below.
Transformer model_of(const std::string& kind) {
  Transformer model;
  model.name = kind, model.hidden = 512, model.layers = 4, model.q_heads = 16, model.kv_heads = 8;
  model.head_dim = 64, model.intermediate = 1280, model.vocab = 4096;
  if (kind == "experts") model.experts = Experts{8, 2, 768};
  if (kind == "shared") model.experts = Experts{8, 2, 768, 512};
  if (kind == "mixed") {
    model.experts = Experts{8, 2, 768, 512};
    set_layers(model, {{{}, {}, true}, {{}, {}, true}, {}, {}});
  }
  if (kind == "one dense") {
    model.experts = Experts{8, 2, 768, 512};
    set_layers(model, {{{}, {}, true}, {}, {}, {}});
  }
  if (kind == "latent") model.kv_heads = 16, model.latent = Latent{256, 128, 32, 48};
  if (kind == "sinks") model.sinks = true;
  if (kind == "tied") model.tied_embeddings = true;
  if (kind == "wide attention") model.intermediate = 640;
  return model;
}

StepRequest request_of(const std::string& kind, const char* layout) {
  StepRequest request{model_of(kind), {}, parse_parallel_layout(layout)};
  request.workload.seq_len = 4096, request.workload.global_batch = 8;
  return request;
}

Memory least_of(const StepRequest& request, const MemoryRules& rules = {}) {
  return least_memory_of(request.model, request.workload, request.layout, rules);
}

// ---- logits and unsharded: what plans hold ----

const Buffer& buffer_of(const Plan& plan, const View& view) {
  return plan.buffers[static_cast<std::size_t>(view.buffer)];
}

const MatMul& product(const Plan& plan, std::string_view label) {
  for (const StepRef& ref : steps_of(plan)) {
    if (ref.step->label == label) return std::get<MatMul>(std::get<Kernel>(ref.step->work));
  }
  throw InvalidInput(str("the plan has no product \"", label, "\""));
}

// Of a window of a gathered piece; 0 where the piece is at home.
std::int64_t gathered_bytes(const Plan& plan, const View& view) {
  const Buffer& buffer = buffer_of(plan, view);
  return buffer.kind == BufferKind::temporary ? view.numel() * size_bytes(buffer.dtype) : 0;
}

// Of layers: slots that the forward pass has gathered to, and the backward pass will gather to.
std::int64_t slots_around_loss(const Plan& plan) {
  StepId loss = -1;
  for (const StepRef& ref : steps_of(plan)) loss = ref.step->label == "head" ? ref.id : loss;
  const BufferId table = product(plan, "head").b.buffer;
  std::int64_t bytes = 0;
  for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& buffer = plan.buffers[id];
    const bool lives = buffer.first_use >= 0 && buffer.first_use <= loss && loss <= buffer.last_use;
    const bool of_head = static_cast<BufferId>(id) == table || buffer.name == "unsharded/head";
    if (lives && !of_head && buffer.name.starts_with("unsharded/") && !buffer.name.ends_with("gradients"))
      bytes += buffer.bytes();
  }
  return bytes;
}

// A chunk of logits, the gradient of one, the rows under the head, and the head's table where it is gathered;
// behind the first chunk its gradient, too.
std::int64_t loss_bytes(const Plan& plan, int chunks) {
  const MatMul &head = product(plan, "head"), &dgrad = product(plan, "head, dgrad"),
               &wgrad = product(plan, "head, wgrad");
  return buffer_of(plan, head.out).bytes() + buffer_of(plan, dgrad.a).bytes() +
         buffer_of(plan, head.a).bytes() + gathered_bytes(plan, head.b) +
         (chunks > 1 ? gathered_bytes(plan, wgrad.out) : 0) + slots_around_loss(plan);
}

TEST(MemoryTerms, LogitsAreWhatTheLossOfPlansHolds) {
  MemoryRules rules;
  rules.loss_f32_copies = 0;  // the plan's kernels make none
  for (const char* kind : {"plain", "tied"}) {
    for (const char* layout :
         {"tp=1", "dp_shard=4", "tp=2", "tp=4,dp_shard=2", "cp=4,strategy=ring", "tp=2,cp=2,strategy=ring",
          "dp_replicate=2,dp_shard=2", "dp_shard=2,micro_batch=2"}) {
      for (const int chunks : {1, 2, 3, 4, 16}) {
        for (const DType gradients : {DType::f32, DType::bf16}) {
          StepRequest request = request_of(kind, layout);
          request.layout.loss_chunks = chunks, request.workload.gradient_dtype = gradients;
          const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
          EXPECT_EQ(least_of(request, rules).logits, loss_bytes(plan, chunks))
              << kind << " " << to_string(request.layout) << " gradients in " << name(gradients);
        }
      }
    }
  }
}

// Each f32 copy is of one chunk; the first takes the place of the gradient.
TEST(MemoryTerms, CopiesOfTheLossAreOfAChunk) {
  for (const int chunks : {1, 3, 4}) {
    StepRequest request = request_of("plain", "tp=2,dp_shard=2");
    request.layout.loss_chunks = chunks;
    const std::int64_t logits = std::int64_t{(4096 + chunks - 1) / chunks} * (4096 / 2);
    const auto with = [&](double copies) {
      MemoryRules rules;
      rules.loss_f32_copies = copies;
      return least_of(request, rules).logits;
    };
    EXPECT_EQ(with(0.5), with(0));
    EXPECT_EQ(with(1) - with(0), logits * (kF32 - k16));
    EXPECT_EQ(with(3) - with(0), logits * (3 * kF32 - k16));
  }
}

// The last stage, which alone has a head, needs most here; its table is gathered for the whole step and
// counted there.
TEST(MemoryTerms, LogitsOfAStageAreThoseOfItsLoss) {
  MemoryRules rules;
  rules.loss_f32_copies = 0;
  for (const char* kind : {"plain", "tied"}) {
    for (const char* layout : {"pp=2,recompute=full", "pp=2,dp_shard=2,recompute=full,loss_chunks=2"}) {
      StepRequest request = request_of(kind, layout);
      request.model.vocab = 65536;
      const std::int64_t rows = 4096 * request.model.hidden * k16,
                         chunk = std::int64_t{4096} / request.layout.loss_chunks * 65536 * k16;
      EXPECT_EQ(least_of(request, rules).logits, rows + 2 * chunk) << kind << " " << layout;
    }
  }
  // The first one does, with activations of four micro-batches, and has no head.
  EXPECT_EQ(least_of(request_of("plain", "pp=4")).logits, 0);
}

// Serving: one row of each sequence, in f32.
TEST(MemoryTerms, LogitsOfServingAreOneRowOfEachSequence) {
  for (const int tp : {1, 4}) {
    StepRequest request = request_of("plain", tp == 1 ? "micro_batch=3" : "tp=4,micro_batch=3");
    request.workload.phase = Phase::prefill;
    EXPECT_EQ(least_of(request).logits, 3 * 4096 / tp * kF32);
  }
}

// Two gathered layers (of a kind that one layer alone is of, one) and the gradients of one. Where these
// travel in another dtype, they are there again at another moment.
TEST(MemoryTerms, UnshardedIsWhatPlansGatherOfLayers) {
  for (const char* kind : {"plain", "tied", "experts", "shared", "mixed", "one dense", "latent", "sinks"}) {
    for (const char* layout : {"dp_shard=4", "tp=4,dp_shard=2", "cp=4,strategy=ring", "dp_shard=4,ep=2",
                               "tp=2,dp_shard=8,ep=4", "dp_replicate=2,dp_shard=2"}) {
      for (const DType gradients : {DType::f32, DType::bf16}) {
        StepRequest request = request_of(kind, layout);
        if (!request.model.experts) request.layout.ep = 1;
        request.workload.gradient_dtype = gradients;
        const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
        std::int64_t gathered = 0;
        for (const Buffer& buffer : plan.buffers) {
          const bool of_ends =
              buffer.name.starts_with("unsharded/embedding") || buffer.name.starts_with("unsharded/head");
          const bool again = buffer.name.find("cast gradients") != std::string::npos;
          if (buffer.name.starts_with("unsharded/") && !of_ends && !again) gathered += buffer.bytes();
        }
        // Layers with other parts have their slots, and make their gradients, at another time.
        const bool alike = request.model.kinds.size() == 1 && !request.model.experts;
        const std::int64_t unsharded = least_of(request).unsharded;
        EXPECT_TRUE(alike ? unsharded == gathered : unsharded <= gathered && unsharded > gathered / 3)
            << unsharded << " of " << gathered << " " << kind << " " << to_string(request.layout)
            << " gradients in " << name(gradients);
        EXPECT_GT(gathered, 0);
      }
    }
  }
  // f32 products cannot add to gradients in bf16: those of a layer lie beside the sums, made, and then
  // rounded.
  for (const char* layout : {"tp=4", "pp=2,dp_shard=2"}) {
    StepRequest request = request_of("plain", layout);
    request.workload.dtype = DType::f32, request.workload.gradient_dtype = DType::bf16;
    const bool has_stages = request.layout.pp > 1;
    const Plan plan = step_plan(request, has_stages ? StepPart::backward : StepPart::micro_batch, 0, 0);
    std::int64_t rounded = 0;
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.kind == BufferKind::temporary && buffer.name.starts_with("unsharded/layers") &&
          buffer.dtype == DType::f32)
        rounded += buffer.bytes();
    }
    EXPECT_EQ(least_of(request).unsharded, rounded) << layout;
    EXPECT_GT(rounded, 0) << layout;
  }
  for (const char* whole : {"tp=4", "dp_replicate=2", "pp=2,dp_shard=2"})
    EXPECT_EQ(least_of(request_of("plain", whole)).unsharded, 0) << whole;
}

// ---- at work: by hand ----

constexpr std::int64_t kTokens = 4096, kHidden = 512, kColumns = 1280, kQ = std::int64_t{16} * 64,
                       kKv = std::int64_t{8} * 64, kExpert = 768;

std::int64_t at_work(const char* kind, const char* layout) {
  const Memory least = least_of(request_of(kind, layout));
  return least.working + least.attention;
}

// Beside the gradient of a layer's rows: the gradients of gate, up and their product; or those of q and k,
// before their rotation and behind it.
TEST(MemoryTerms, AtWorkByHand) {
  EXPECT_EQ(at_work("plain", "tp=1"), kTokens * (kHidden + 3 * kColumns) * k16);
  EXPECT_EQ(at_work("wide attention", "tp=1"), kTokens * (kHidden + 2 * (kQ + kKv)) * k16);
  // Half of the columns, and of the rows between regions; whole rows as the MLP takes them.
  EXPECT_EQ(at_work("plain", "tp=2"), kTokens * (kHidden / 2 + kHidden + 3 * kColumns / 2) * k16);
  EXPECT_EQ(at_work("plain", "cp=4,strategy=ring") * 4, at_work("plain", "tp=1"));
  EXPECT_EQ(at_work("plain", "micro_batch=2"), at_work("plain", "tp=1") * 2);
  // Two rows of experts for each token: the gradients inside; or those inside of one product, and of the
  // rows.
  EXPECT_EQ(at_work("experts", "tp=1"), kTokens * (kHidden + 6 * kExpert) * k16);
  EXPECT_EQ(at_work("mixed", "tp=1"), at_work("experts", "tp=1"));
  // Gradients arrive beside those that are to be sent.
  EXPECT_EQ(at_work("experts", "tp=8,dp_shard=2,ep=2,sequence_parallel=no"), kTokens * 5 * kHidden * k16);
}

// A layer that is made again has made what its mixer keeps, and gate and up; of experts the rows, too.
TEST(MemoryTerms, WhatIsMadeAgainIsAtWork) {
  constexpr std::int64_t kMixer = kTokens * ((2 * kQ + 2 * kKv) * k16 + 16 * kF32);
  EXPECT_EQ(at_work("plain", "recompute=full"), kMixer + kTokens * (kHidden + (3 + 2) * kColumns) * k16);
  EXPECT_EQ(at_work("experts", "recompute=full"),
            kMixer + 2 * kTokens * kHidden * k16 + kTokens * (kHidden + 10 * kExpert) * k16);
  // Nothing is claimed of norms, nor where some layers are made again.
  for (const char* some : {"recompute=selective", "recompute=every:2"})
    EXPECT_EQ(at_work("plain", some), at_work("plain", "recompute=none")) << some;
}

// Gathered keys and values, and their gradients in f32, where that is more than all else.
TEST(MemoryTerms, WhatCoresClaimByHand) {
  constexpr std::int64_t kRows = kTokens / 4;
  const auto claimed = [](const char* layout) {
    return least_of(request_of("wide attention", layout)).attention;
  };
  EXPECT_EQ(claimed("cp=4,strategy=all_gather"), 4 * kRows * 2 * kKv * (k16 + kF32));
  EXPECT_EQ(claimed("tp=2,cp=4,strategy=all_gather") * 2, claimed("cp=4,strategy=all_gather"));
  for (const char* nothing : {"strategy=ring", "strategy=pass_q", "strategy=need_only", "strategy=ulysses"})
    EXPECT_EQ(claimed(str("cp=4,", nothing).c_str()), 0) << nothing;
}

TEST(MemoryTerms, AtWorkInServingByHand) {
  constexpr std::int64_t kFresh = 1024;
  const auto working = [](const char* kind, const char* layout) {
    StepRequest request = request_of(kind, layout);
    request.workload.phase = Phase::prefill, request.workload.cached = 3072;
    return least_of(request).working;
  };
  EXPECT_EQ(working("plain", "tp=1"), kFresh * (2 * kHidden + 3 * kColumns) * k16);
  EXPECT_EQ(working("wide attention", "tp=1"), kFresh * (2 * kHidden + 2 * (kQ + kKv)) * k16);
  EXPECT_EQ(working("plain", "tp=2"), kFresh * (2 * kHidden / 2 + 3 * kColumns / 2) * k16);
  EXPECT_EQ(working("experts", "tp=1"), kFresh * (2 * kHidden + 6 * kExpert) * k16);
}

// ---- what the cluster adds ----

TEST(MemoryTerms, CommunicatorsAreThoseOfEachAxis) {
  MemoryRules rules;
  rules.communicator_bytes = 1000, rules.context_bytes = 77;
  const auto count = [&](const char* layout, Phase phase = Phase::training) {
    StepRequest request = request_of("experts", layout);
    request.workload.phase = phase, request.workload.global_batch = 8;
    const Memory memory = least_of(request, rules);
    EXPECT_EQ(memory.context, 77);
    return memory.communicators / 1000;
  };
  EXPECT_EQ(count("tp=1"), 0);
  EXPECT_EQ(count("tp=2"), 1);
  EXPECT_EQ(count("dp_shard=2"), 1);
  EXPECT_EQ(count("dp_replicate=2"), 1);
  EXPECT_EQ(count("cp=2,strategy=ring"), 2);  // its own, and that over which parameters are sharded
  EXPECT_EQ(count("cp=2,strategy=ring,sharding=dp_shard"), 1);
  EXPECT_EQ(count("dp_shard=2,ep=2"), 2);
  EXPECT_EQ(count("pp=2"), 2);  // rows and gradients
  EXPECT_EQ(count("pp=2,virtual_stages=2"), 4);
  EXPECT_EQ(count("pp=4"), 4);
  EXPECT_EQ(count("pp=2", Phase::prefill), 1);
  EXPECT_EQ(count("pp=4", Phase::prefill), 2);
  EXPECT_EQ(count("dp_replicate=2,dp_shard=2,ep=2,tp=2,cp=2,pp=2,strategy=ring"), 7);
  EXPECT_EQ(count("dp_replicate=2", Phase::prefill), 0);
  EXPECT_EQ(count("tp=2,cp=2,strategy=ring", Phase::prefill), 2);
}

TEST(MemoryTerms, ParametersOfServingHaveBytesOfTheirOwn) {
  StepRequest request = request_of("plain", "tp=1");
  request.workload.phase = Phase::prefill;
  constexpr std::int64_t kLayer = kHidden * (2 * kQ + 2 * kKv) + 2 * kHidden + 3 * kHidden * kColumns,
                         kEnds = 2 * kTokens * kHidden + kHidden;
  for (const std::int64_t bytes : {1, 2}) {
    MemoryRules rules;
    rules.served_layer_bytes = static_cast<double>(bytes);
    EXPECT_EQ(least_of(request, rules).parameters, 4 * kLayer * bytes + kEnds * k16);
  }
}

// ---- sums ----

// Each term has a digit of its own.
TEST(MemoryTerms, AddUpEachOnce) {
  Memory memory;
  std::int64_t digit = 1;
  for (std::int64_t* term :
       {&memory.parameters, &memory.master, &memory.gradients, &memory.optimizer, &memory.gathered,
        &memory.unsharded, &memory.activations, &memory.working, &memory.logits, &memory.attention,
        &memory.kv_cache, &memory.communicators, &memory.context, &memory.slack}) {
    *term = digit;
    digit *= 10;
  }
  std::int64_t expected = 1;
  std::set<std::string_view> names;
  for (const auto& [name, value] : terms(memory)) {
    EXPECT_EQ(value, expected) << name;
    names.insert(name);
    expected *= 10;
  }
  EXPECT_EQ(names.size(), 14U);
  // unsharded 10^5, working 10^7 and attention 10^9 at once, which are more than logits, 10^8.
  EXPECT_EQ(memory.allocated(), 11'011'111'111);
  memory.logits = 2'000'000'000;
  EXPECT_EQ(memory.allocated(), 12'001'011'111);
  EXPECT_EQ(memory.reserved(), memory.allocated() + 10'000'000'000'000);
  EXPECT_EQ(memory.used(), memory.reserved() + 100'000'000'000 + 1'000'000'000'000);
}

TEST(MemoryTerms, SlackIsAShareOfWhatIsAllocated) {
  MemoryRules rules;
  rules.slack = 0.25;
  for (const char* layout : {"dp_shard=4,recompute=full", "tp=4,recompute=full"}) {
    const Memory memory = least_of(request_of("plain", layout), rules);
    EXPECT_NEAR(static_cast<double>(memory.slack), 0.25 * static_cast<double>(memory.allocated()), 0.5);
  }
}

}  // namespace
}  // namespace cp
