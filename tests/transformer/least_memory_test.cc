#include "shared/transformer/least_memory.h"

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/transformer/memory_reading.h"
#include "shared/transformer/step_plan.h"

namespace cp {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

Transformer llama_8b() {
  Transformer model;
  model.name = "llama", model.hidden = 4096, model.layers = 32, model.q_heads = 32, model.kv_heads = 8;
  model.head_dim = 128, model.intermediate = 14336, model.vocab = 128256;
  return model;
}

Memory memory(const char* layout, std::int64_t seq_len, std::int64_t batch, const MemoryRules& rules = {},
              Workload workload = {}) {
  workload.seq_len = seq_len, workload.global_batch = batch;
  return least_memory_of(llama_8b(), workload, parse_parallel_layout(layout), rules);
}

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

// Eight billion parameters over eight GPUs: 8,030,261,248 / 8 x (4 + 4 + 8) bytes; 32 layers' inputs of
// 32,768 x 4,096 in bf16; and logits of 32,768 x 128,256 in bf16 with three copies in f32, beside the 32,768
// x 4,096 rows under the head, its own 128,256 x 4,096 weights, and two slots with layers' 218,112,000.
TEST(LeastMemory, OfAnEightBillionModelByHand) {
  MemoryRules rules;
  rules.loss_f32_copies = 3;
  const Memory it = memory("dp_shard=8,recompute=full", 32768, 8, rules);
  EXPECT_NEAR(static_cast<double>(it.parameters), 8030261248.0 / 8 * 4, 1e4);  // padding of 34 pieces
  EXPECT_NEAR(static_cast<double>(it.gradients), 8030261248.0 / 8 * 4, 1e4);
  EXPECT_NEAR(static_cast<double>(it.optimizer), 8030261248.0 / 8 * 8, 2e4);
  EXPECT_EQ(it.activations, 32LL * 32768 * 4096 * 2 + std::int64_t{32768} * 128 * 4);
  EXPECT_EQ(it.logits,
            32768LL * 128256 * (2 + 12) + 32768LL * 4096 * 2 + 128256LL * 4096 * 2 + 2 * 218'112'000LL * 2);
  EXPECT_EQ(it.master, 0);
  EXPECT_EQ(it.kv_cache, 0);
  // What torchtitan measured of just that: 83.9 GiB with context and allocator (end_to_end.csv).
  EXPECT_NEAR(gib(it.allocated()), 81, 3);
}

// A token of a layer keeps, in elements: the input 4,096, two norms 2 x 4,096, q and out 2 x 4,096, k and v 2
// x 1,024, x between 4,096, gate and up 2 x 14,336, their product 14,336; and 32 f32 of lse. A position of
// the sequence has 128 f32 of sines and cosines, on every rank.
TEST(LeastMemory, OfActivationsByHand) {
  const std::int64_t tokens = 8192, layers = 32, positions = tokens * 128 * 4;
  const auto memory = [&](const char* layout, std::int64_t seq_len, std::int64_t batch) {
    Memory of = cp::memory(layout, seq_len, batch);
    of.activations -= positions;
    return of;
  };
  const std::int64_t input = std::int64_t{4096} * 2, cheap = (std::int64_t{2} * 4096 + 14336) * 2,
                     rest = (std::int64_t{3} * 4096 + std::int64_t{2} * (1024 + 14336)) * 2 +
                            std::int64_t{32} * 4;
  EXPECT_EQ(memory("recompute=none", tokens, 1).activations, layers * tokens * (input + cheap + rest));
  EXPECT_EQ(memory("recompute=selective", tokens, 1).activations, layers * tokens * (input + rest));
  EXPECT_EQ(memory("recompute=full", tokens, 1).activations, layers * tokens * input);
  EXPECT_EQ(memory("recompute=every:4", tokens, 1).activations,
            tokens * (8 * input + 24 * (input + cheap + rest)));
  // Tensor parallel with sequence parallelism: a quarter of everything.
  EXPECT_EQ(memory("tp=4,recompute=none", tokens, 1).activations * 4,
            layers * tokens * (input + cheap + rest));
  // Context parallel, head_tail: half of the rows.
  EXPECT_EQ(memory("cp=2,strategy=ring,balance=head_tail,recompute=full", tokens, 1).activations * 2,
            layers * tokens * input);
  // Four stages, of which the first has four micro-batches in flight: as much as one stage would.
  EXPECT_EQ(memory("pp=4,recompute=none", tokens, 8).activations, layers * tokens * (input + cheap + rest));
}

// Two stages of two ranks have 2, 3, 2 and 2 layers. The first rank has five passes in flight, and a place
// more for inputs; none of its stages has three layers.
TEST(LeastMemory, OfStagesThatAreARanksOwn) {
  Transformer model;
  model.hidden = 64, model.layers = 9, model.q_heads = 4, model.kv_heads = 4, model.head_dim = 16;
  model.intermediate = 64, model.vocab = 64;
  Workload workload;
  workload.seq_len = 32768, workload.global_batch = 8;
  const Memory least = least_memory_of(
      model, workload, parse_parallel_layout("pp=2,virtual_stages=2,recompute=full,loss_chunks=16"), {});
  EXPECT_EQ(least.activations, 6 * 2 * 32768 * 64 * 2 + 32768 * 16 * 4);
}

TEST(LeastMemory, OfTheOptimizerByHand) {
  Workload workload;
  const double shard = 8030261248.0 / 8;
  workload.optimizer = parse_optimizer("sgd");
  EXPECT_EQ(memory("dp_shard=8", 8192, 8, {}, workload).optimizer, 0);
  workload.optimizer = parse_optimizer("adamw_16");
  EXPECT_NEAR(static_cast<double>(memory("dp_shard=8", 8192, 8, {}, workload).optimizer), shard * 4, 1e4);
  workload.optimizer = parse_optimizer("adamw:offload");
  const Memory offloaded = memory("dp_shard=8", 8192, 8, {}, workload);
  EXPECT_EQ(offloaded.optimizer, 0);
  EXPECT_NEAR(static_cast<double>(offloaded.parameters), shard * 2, 1e4);
  // Replicas hold everything: 2 bytes that compute, and 4 of the master copy.
  const Memory replica = memory("dp_replicate=8", 8192, 8);
  EXPECT_NEAR(static_cast<double>(replica.parameters), 8030261248.0 * 2, 1);
  EXPECT_NEAR(static_cast<double>(replica.master), 8030261248.0 * 4, 1);
}

// 32 layers x 8 heads x 128 x 2 x 2 bytes for each of 131,072 tokens and four requests; an eighth of the
// heads with tp 8, half of the rows with cp 2.
TEST(LeastMemory, OfTheCacheByHand) {
  Workload workload;
  workload.phase = Phase::prefill;
  const std::int64_t whole = 32LL * 8 * 128 * 2 * 2 * 131072 * 4;
  EXPECT_EQ(memory("micro_batch=4", 131072, 4, {}, workload).kv_cache, whole);
  EXPECT_EQ(memory("tp=8,micro_batch=4", 131072, 4, {}, workload).kv_cache, whole / 8);
  EXPECT_EQ(memory("tp=16,micro_batch=4", 131072, 4, {}, workload).kv_cache,
            whole / 8);  // heads are replicated
  EXPECT_EQ(memory("tp=8,cp=2,micro_batch=4,strategy=ring", 131072, 4, {}, workload).kv_cache, whole / 16);
}

// Where a token is written, 12 of 24 layers keep 128 keys and values of 8 heads x 64, the others all 4,096.
TEST(LeastMemory, OfTheCacheOfWindowsByHand) {
  Transformer model;
  model.hidden = 2880, model.layers = 24, model.q_heads = 64, model.kv_heads = 8, model.head_dim = 64;
  model.intermediate = 2880, model.vocab = 201088;
  std::vector<LayerKind> layers(24);
  for (std::size_t layer = 0; layer < layers.size(); layer += 2) layers[layer].window = 128;
  set_layers(model, layers);
  Workload workload;
  workload.phase = Phase::decode, workload.seq_len = 4096, workload.cached = 4095, workload.new_tokens = 1;
  const std::int64_t token = std::int64_t{8} * 64 * 2 * 2;  // K and V of a layer, in bf16
  EXPECT_EQ(least_memory_of(model, workload, {}, {}).kv_cache, std::int64_t{12} * (128 + 4096) * token);
  workload.phase = Phase::prefill, workload.cached = 0, workload.new_tokens = 0;
  EXPECT_EQ(least_memory_of(model, workload, {}, {}).kv_cache, std::int64_t{24} * 4096 * token);
}

// DeepSeek-V3: 512 + 64 elements a token in each of 61 layers, whatever the heads, on all tp ranks; a rank of
// cp has its rows.
TEST(LeastMemory, OfTheCacheOfLatentRowsByHand) {
  Transformer model;
  model.hidden = 7168, model.layers = 61, model.q_heads = model.kv_heads = 128, model.head_dim = 192;
  model.intermediate = 18432, model.vocab = 129280, model.latent = Latent{1536, 512, 64, 128};
  Workload workload;
  workload.phase = Phase::decode, workload.seq_len = 32768, workload.cached = 32767, workload.new_tokens = 1;
  workload.global_batch = 16;
  const std::int64_t whole = std::int64_t{16} * 32768 * 61 * 576 * 2;
  const auto cache = [&](const char* layout) {
    return least_memory_of(model, workload, parse_parallel_layout(layout), {}).kv_cache;
  };
  EXPECT_EQ(cache("micro_batch=16"), whole);
  EXPECT_EQ(cache("tp=8,micro_batch=16"), whole);
  EXPECT_EQ(cache("tp=8,cp=4,micro_batch=16,strategy=pass_q"), whole / 4);
  workload.phase = Phase::prefill, workload.cached = 0, workload.new_tokens = 0;
  EXPECT_EQ(cache("tp=8,micro_batch=16"), whole);
}

TEST(LeastMemory, TermsAddUp) {
  MemoryRules rules{.context_bytes = std::int64_t{1} << 30, .communicator_bytes = std::int64_t{1} << 27};
  rules.slack = 0.1;
  const Memory it = memory("tp=2,cp=2,dp_shard=2,strategy=ring", 8192, 2, rules);
  EXPECT_EQ(it.communicators, 3LL << 27);
  EXPECT_EQ(it.context, 1LL << 30);
  EXPECT_NEAR(static_cast<double>(it.slack), 0.1 * static_cast<double>(it.allocated()), 1);
  EXPECT_EQ(it.used(), it.allocated() + it.slack + it.communicators + it.context);
}

// ---- of other models, stages and phases, to the byte ----

// Nothing needs padding: all sizes divide by all degrees below.
Transformer of_kind(const char* kind) {
  Transformer model;
  model.name = kind, model.hidden = 512, model.layers = 8, model.q_heads = 16, model.kv_heads = 8;
  model.head_dim = 64, model.intermediate = 1024, model.vocab = 4096;
  if (model.name == "mixtral") model.experts = Experts{8, 2, 768};
  if (model.name == "glm") {  // of each two layers one has experts, so that stages are equally large
    model.experts = Experts{8, 2, 768, 256};
    std::vector<LayerKind> layers(8);
    for (const std::size_t layer : {0U, 3U, 4U, 7U}) layers[layer].dense = true;
    set_layers(model, layers);
  }
  if (model.name == "qwen2") model.qkv_bias = true;
  if (model.name == "qwen3") model.qk_norm = true, model.tied_embeddings = true;
  if (model.name == "olmo2")
    model.qk_norm = model.qk_norm_of_all_heads = model.norms_behind = true, model.norms_before = false;
  if (model.name == "deepseek") model.kv_heads = 16, model.latent = Latent{192, 128, 32, 48};
  if (model.name == "cohere") model.parallel_blocks = model.tied_embeddings = true;
  if (model.name == "gpt_oss") {
    model.sinks = true;
    std::vector<LayerKind> layers(8);
    for (std::size_t layer = 0; layer < layers.size(); layer += 2) layers[layer].window = 128;
    layers.back().chunk = 256;
    set_layers(model, layers);
  }
  return model;
}

// Whatever the kind of a buffer.
std::int64_t bytes_of(const Plan& plan, const std::string& term) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.name.starts_with(term + "/")) bytes += buffer.bytes();
  }
  return bytes;
}

std::int64_t bytes_of_inputs(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan.buffers) bytes += buffer.name == "activations/x" ? buffer.bytes() : 0;
  return bytes;
}

std::int64_t bytes_of_x(const StepRequest& request) {
  const ParallelLayout& layout = request.layout;
  return layout.micro_batch * request.workload.seq_len / layout.cp / layout.tp * request.model.hidden * 2;
}

constexpr const char* kKinds[] = {"llama", "mixtral", "glm",      "qwen2", "qwen3",
                                  "olmo2", "gpt_oss", "deepseek", "cohere"};

// What a micro-batch keeps is what its plan stacks up, but for the last layer's output, which the loss uses
// up.
TEST(LeastMemoryOfModels, KeepsWhatPlansStackUp) {
  for (const char* kind : kKinds) {
    for (const char* layout :
         {"tp=1", "tp=4,dp_shard=2,ep=2", "cp=4,strategy=ring,balance=head_tail",
          "cp=4,strategy=all_gather,balance=head_tail_exchange", "cp=4,strategy=pass_q,balance=head_tail",
          "cp=4,strategy=ulysses", "tp=4,cp=4,strategy=ulysses",
          "tp=2,cp=4,dp_shard=2,ep=4,strategy=ring,ulysses_degree=2,micro_batch=2"}) {
      for (const char* recompute : {"none", "selective", "full", "every:2", "every:3"}) {
        StepRequest request{of_kind(kind), {}, parse_parallel_layout(layout)};
        request.workload.seq_len = 4096, request.workload.global_batch = 8;
        request.layout.recompute = parse_recompute(recompute);
        if (!request.model.experts) request.layout.ep = 1;
        const Plan plan = step_plan(request, StepPart::micro_batch, 0, busiest_rank(request, 0));
        EXPECT_EQ(least_memory_of(request.model, request.workload, request.layout, {}).activations,
                  bytes_of(plan, "activations") - bytes_of_x(request))
            << kind << " " << to_string(request.layout);
      }
    }
  }
}

// Where latent rows travel, the rows are kept in place of keys and values: once, or with Ulysses those of the
// whole group.
TEST(LeastMemoryOfModels, KeepsLatentRowsThatTravel) {
  for (const char* layout :
       {"cp=4,strategy=ring,balance=head_tail", "cp=4,strategy=all_gather,balance=head_tail_exchange",
        "cp=4,strategy=ulysses", "tp=4,cp=4,strategy=ulysses", "tp=4,cp=2,sequence_parallel=no,strategy=ring",
        "tp=2,cp=4,dp_shard=2,strategy=ring,ulysses_degree=2,micro_batch=2"}) {
    for (const char* recompute : {"none", "selective", "full", "every:2", "every:3"}) {
      StepRequest request{of_kind("deepseek"), {}, parse_parallel_layout(str(layout, ",keys=latent"))};
      request.workload.seq_len = 4096, request.workload.global_batch = 8;
      request.layout.recompute = parse_recompute(recompute);
      const Plan plan = step_plan(request, StepPart::micro_batch, 0, busiest_rank(request, 0));
      const std::int64_t rows = request.layout.row_ranks() > 1 ? request.layout.tp : 1,
                         last = request.layout.micro_batch * 4096 / request.layout.cp / rows * 512 * 2;
      const Memory memory = least_memory_of(request.model, request.workload, request.layout, {});
      EXPECT_EQ(memory.activations, bytes_of(plan, "activations") - last) << to_string(request.layout);
    }
  }
}

// Shards, and of experts those of the ranks that share them. Whole ones lie beside their f32 copies.
TEST(LeastMemoryOfModels, HasTheShardsThatPlansDeclare) {
  for (const char* kind : kKinds) {
    for (const char* layout : {"tp=1", "dp_replicate=2", "dp_shard=8,ep=4", "tp=4,dp_shard=4,ep=2",
                               "tp=4,dp_shard=2,ep=2", "tp=2,cp=4,dp_shard=2,ep=8,strategy=ring",
                               "dp_replicate=2,dp_shard=4,ep=4", "tp=2,cp=4,dp_shard=2,ep=4,strategy=ring",
                               "cp=4,dp_shard=4,ep=2,sharding=dp_shard,strategy=ring"}) {
      for (const char* optimizer : {"adamw", "adamw_16", "adamw:offload", "sgd"}) {
        StepRequest request{of_kind(kind), {}, parse_parallel_layout(layout)};
        request.workload.seq_len = 512, request.workload.global_batch = 8;
        request.workload.optimizer = parse_optimizer(optimizer);
        if (!request.model.experts) request.layout.ep = 1;
        const Memory memory = least_memory_of(request.model, request.workload, request.layout, {});
        const Plan step = step_plan(request, StepPart::micro_batch, 0, 0),
                   update = step_plan(request, StepPart::update, 0, 0);
        const auto where = str(kind, " ", to_string(request.layout), " ", optimizer);
        EXPECT_EQ(memory.parameters, bytes_of(step, "parameters")) << where;
        EXPECT_EQ(memory.gradients, bytes_of(step, "gradients")) << where;
        EXPECT_EQ(memory.master, bytes_of(update, "master")) << where;
        EXPECT_EQ(memory.optimizer, bytes_of(update, "optimizer")) << where;
      }
    }
  }
}

// The first rank has most passes in flight: all stages' worth of 1F1B, or all micro-batches where there are
// fewer; with two stages of its own on two ranks four warm-up passes and one more before the first backward
// pass ends (Narayanan et al. 2021, figure 4). There it takes rows, too, and has the inputs of a pass more.
TEST(LeastMemoryOfModels, HasActivationsOfAllMicroBatchesInFlight) {
  const struct {
    const char* layout;
    std::int64_t batch, in_flight;
  } rows[] = {{"pp=4", 8, 4},
              {"pp=4", 2, 2},
              {"pp=2,dp_shard=2", 8, 2},
              {"pp=2,tp=2,virtual_stages=2", 4, 5},
              {"pp=2,cp=2,strategy=ring", 3, 2},
              {"pp=2,micro_batch=2", 8, 2}};
  for (const char* kind : kKinds) {
    for (const auto& row : rows) {
      for (const char* recompute : {"none", "selective"}) {
        StepRequest request{of_kind(kind), {}, parse_parallel_layout(row.layout)};
        request.workload.seq_len = 4096, request.workload.global_batch = row.batch;
        request.layout.recompute = parse_recompute(recompute), request.layout.loss_chunks = 16;
        const Plan plan = step_plan(request, StepPart::forward, 0, busiest_rank(request, 0));
        const std::int64_t positions = 4096 * request.model.rotated_dim() * 4, x = bytes_of_x(request),
                           inputs = bytes_of_inputs(plan) - x;
        EXPECT_EQ(least_memory_of(request.model, request.workload, request.layout, {}).activations,
                  positions + row.in_flight * (bytes_of(plan, "activations") - positions - x) +
                      (request.layout.virtual_stages > 1 ? inputs : 0))
            << kind << " " << to_string(request.layout);
      }
    }
  }
}

// Of two stages of a rank one has attention and the other MLPs: a slot has room for either, and so for both.
TEST(LeastMemoryOfModels, HasSlotsForAnyOfARanksStages) {
  StepRequest request{of_kind("llama"), {}, parse_parallel_layout("pp=2,virtual_stages=2,loss_chunks=16")};
  constexpr LayerKind kMixer{{}, {}, false, Mixer::attention, false}, kMlp{{}, {}, false, Mixer::none, true};
  set_layers(request.model, {kMixer, kMixer, kMixer, kMixer, kMlp, kMlp, kMlp, kMlp});
  request.workload.seq_len = 4096, request.workload.global_batch = 4;
  const std::int64_t positions = 4096 * request.model.rotated_dim() * 4, x = bytes_of_x(request);
  std::map<std::string, std::int64_t> slot;
  for (const int stage : {0, 2}) {
    for (const Buffer& buffer : step_plan(request, StepPart::forward, stage, 0).buffers) {
      if (!buffer.name.starts_with("activations/") || buffer.name == "activations/positions") continue;
      std::int64_t& bytes = slot[buffer.name];
      bytes = std::max(bytes, buffer.bytes());
    }
  }
  std::int64_t bytes = -x;  // the last layer's output
  for (const auto& [name, of_buffer] : slot) bytes += of_buffer;
  const Memory least = least_memory_of(request.model, request.workload, request.layout, {});
  EXPECT_EQ(least.activations, positions + 5 * bytes + slot.at("activations/x") - x);
  EXPECT_EQ(least.activations, memory_of(request, {}).activations - 6 * x);
}

// With stages whole parameters and gradients stay for the step.
TEST(LeastMemoryOfModels, HasWholeParametersOfStages) {
  for (const char* kind : kKinds)
    for (const char* layout : {"pp=2,dp_shard=4,ep=2", "pp=2,dp_shard=4,ep=4", "pp=2,dp_replicate=2"}) {
      StepRequest request{of_kind(kind), {}, parse_parallel_layout(layout)};
      request.workload.seq_len = 4096, request.workload.global_batch = 8;
      if (!request.model.experts) request.layout.ep = 1;
      const Memory memory = least_memory_of(request.model, request.workload, request.layout, {});
      const Plan update = step_plan(request, StepPart::update, 0, 0);
      std::int64_t whole = 0;  // not the shard on its way
      for (const Buffer& buffer : update.buffers) {
        if (buffer.kind != BufferKind::temporary && buffer.name.starts_with("unsharded/"))
          whole += buffer.bytes();
      }
      EXPECT_EQ(memory.gathered, whole) << kind;
      EXPECT_EQ(memory.parameters, bytes_of(update, "parameters")) << kind;
      std::int64_t gradients = 0;  // of whole ones that ranks share the update makes shards itself
      for (const Buffer& buffer : update.buffers) {
        if (buffer.kind != BufferKind::temporary && buffer.name.starts_with("gradients/"))
          gradients += buffer.bytes();
      }
      EXPECT_EQ(memory.gradients, gradients) << kind;
      EXPECT_EQ(memory.master, bytes_of(update, "master")) << kind;
      EXPECT_EQ(memory.optimizer, bytes_of(update, "optimizer")) << kind;
    }
}

TEST(LeastMemoryOfModels, HasTheCacheOfServingPlans) {
  for (const char* kind : kKinds) {
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        for (const char* layout :
             {"micro_batch=4", "tp=4,micro_batch=4", "tp=16,micro_batch=4", "cp=4,strategy=ring",
              "tp=2,cp=4,strategy=pass_q,micro_batch=2", "cp=4,pp=2,strategy=all_gather"}) {
          StepRequest request{of_kind(kind), {}, parse_parallel_layout(layout)};
          Workload& workload = request.workload;
          workload.phase = phase, workload.seq_len = 4096, workload.kv_dtype = dtype;
          workload.cached = phase == Phase::decode ? 4095 : 1024;
          workload.new_tokens = phase == Phase::decode ? 1 : 0;
          workload.global_batch = request.layout.micro_batch;
          const Plan plan = step_plan(request, phase == Phase::decode ? StepPart::decode : StepPart::prefill,
                                      0, busiest_rank(request, 0));
          const Memory memory = least_memory_of(request.model, workload, request.layout, {});
          const auto where = str(kind, " ", to_string(request.layout), " ", name(phase));
          EXPECT_EQ(memory.kv_cache, bytes_of(plan, "kv_cache")) << where;
          if (request.layout.pp == 1) {
            EXPECT_EQ(memory.parameters, bytes_of(plan, "parameters")) << where;
          }
          EXPECT_EQ(memory.activations, 0);
          EXPECT_EQ(memory.gradients + memory.optimizer + memory.master, 0);
        }
      }
    }
  }
}

// A state of 16 heads x 64 x 32 in f32 and 3 rows of 2 x 8 x 64 + 16 x 32 in bf16 of each request, in each of
// the four layers with a recurrence, however long requests are: on the rank of the first new row, or with
// heads a part of the state on every rank.
TEST(LeastMemoryOfModels, HasTheStatesOfServingPlans) {
  StepRequest request{of_kind("llama"), {}, {}};
  request.model.recurrence = Recurrence{RecurrenceRule::delta, 8, 16, 64, 32, 4, false};
  std::vector<LayerKind> layers(8);
  for (const std::size_t layer : {1U, 3U, 5U, 7U}) layers[layer].mixer = Mixer::recurrence;
  set_layers(request.model, layers);
  const std::int64_t state = std::int64_t{16} * 64 * 32 * 4,
                     convolved = std::int64_t{3} * (2 * 8 * 64 + 16 * 32) * 2,
                     keys = std::int64_t{4} * 2 * 8 * 64 * 2;
  const struct {
    const char* layout;
    std::int64_t of_request, of_token;  // bytes on the rank that has most
  } rows[] = {{"micro_batch=4", 4 * (state + convolved), keys},
              {"tp=4,micro_batch=4", (state + convolved), keys / 4},
              {"pp=2,micro_batch=4", 2 * (state + convolved), keys / 2},
              {"cp=4,strategy=pass_q,micro_batch=4", 4 * (state + convolved), keys / 4},
              {"cp=4,strategy=pass_q,micro_batch=4,scan=heads", state + 4 * convolved, keys / 4}};
  for (const auto& row : rows) {
    for (const std::int64_t length : {4096, 8192}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        request.layout = parse_parallel_layout(row.layout);
        Workload& workload = request.workload;
        workload.phase = phase, workload.seq_len = length, workload.global_batch = 4;
        workload.cached = phase == Phase::decode ? length - 1 : 1024;
        workload.new_tokens = phase == Phase::decode ? 1 : 0;
        const std::int64_t cached = 4 * (row.of_request + row.of_token * length);
        const Plan plan = step_plan(request, parts_of(request)[0], 0, 0);
        EXPECT_EQ(cached, bytes_of(plan, "kv_cache")) << row.layout << " " << name(phase);
        if (phase == Phase::prefill && request.layout.cp > 1) continue;  // nothing is claimed
        EXPECT_EQ(least_memory_of(request.model, workload, request.layout, {}).kv_cache, cached)
            << row.layout << " " << name(phase);
      }
    }
  }
}

}  // namespace
}  // namespace cp
