// What is sharded, where rows are split, pieces of an MLP, and host memory: plans, memory and texts of these
// choices agree.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/host_place.h"
#include "shared/transformer/least_memory.h"
#include "shared/transformer/step_plan.h"
#include "tests/support/messages.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t k16 = 2, kF32 = 4;

// Nothing needs padding: all sizes divide by all degrees below.
StepRequest request_of(const char* layout, const char* optimizer = "adamw") {
  StepRequest request{{}, {}, parse_parallel_layout(layout)};
  Transformer& model = request.model;
  model.name = "even", model.hidden = 512, model.layers = 8, model.q_heads = 16, model.kv_heads = 8;
  model.head_dim = 64, model.intermediate = 1280, model.vocab = 4096;
  request.workload.seq_len = 4096, request.workload.global_batch = 8;
  request.workload.optimizer = parse_optimizer(optimizer);
  return request;
}

Memory least_of(const StepRequest& request) {
  return least_memory_of(request.model, request.workload, request.layout, {});
}

std::int64_t bytes_of(const Plan& plan, const std::string& term, bool temporaries = true) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.name.starts_with(term + "/") && (temporaries || buffer.kind != BufferKind::temporary))
      bytes += buffer.bytes();
  }
  return bytes;
}

// Sent by a rank on each group, by operation.
std::map<std::string, std::int64_t> sent_by(const Plan& plan) {
  std::map<std::string, std::int64_t> bytes;
  for (const StepRef& ref : steps_of(plan)) {
    if (!is_collective(*ref.step)) continue;
    const Collective& collective = std::get<Collective>(ref.step->work);
    const std::string& group = plan.groups[static_cast<std::size_t>(group_of(collective))].name;
    std::int64_t& sum = bytes[str(group, " ", operation_name(ref.step->work))];
    for (const std::int64_t sent : volume(collective, plan).sent) sum += ref.count * sent;
  }
  return bytes;
}

// Copied on a stream, in bytes, with what the stream's other kernels write.
std::int64_t moved_on(const Plan& plan, const std::string& stream) {
  std::int64_t bytes = 0;
  for (const StepRef& ref : steps_of(plan)) {
    if (plan.streams[static_cast<std::size_t>(ref.step->stream)] != stream) continue;
    for (const Access& access : accesses(ref.step->work)) {
      const Buffer& buffer = plan.buffers[static_cast<std::size_t>(access.view->buffer)];
      if (access.writes) bytes += ref.count * access.view->numel() * size_bytes(buffer.dtype);
    }
  }
  return bytes;
}

// ---- texts ----

TEST(StepChoices, HaveTextsAndRefusals) {
  for (const char* text :
       {"dp_shard=8,zero=1", "dp_shard=8,zero=2", "tp=2,sequence_parallel=no", "dp_shard=8,reshard=no",
        "dp_shard=8,reshard=2,sync=step,prefetch=0", "dp_shard=8,bucket=3,threshold=1000",
        "tp=1,mlp_chunks=4", "dp_shard=8,recompute=full,mlp_chunks=4,activations=host"}) {
    const ParallelLayout layout = parse_parallel_layout(text);
    EXPECT_EQ(parse_parallel_layout(to_string(layout)), layout) << text;
    EXPECT_THAT(to_string(layout), HasSubstr(std::string(text).substr(std::string(text).find(',') + 1)));
    EXPECT_FALSE(to_string(layout) == to_string(parse_parallel_layout("dp_shard=8"))) << text;
  }
  EXPECT_THAT(message_of([] { parse_parallel_layout("dp_shard=2,zero=4"); }),
              HasSubstr("zero=4 is unknown; use 1 (states are sharded), 2"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("tp=2,sequence_parallel=maybe"); }),
              HasSubstr("use no or yes"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("activations=disk"); }), HasSubstr("use gpu or host"));
  const auto refusal = [](const char* layout) {
    StepRequest request = request_of(layout);
    request.workload.global_batch = 2 * request.layout.dp();
    const auto refused = refuse(request.model, request.workload, request.layout);
    return refused ? refused->text() : "legal";
  };
  EXPECT_EQ(refusal("dp_shard=2,pp=2,zero=1"), "legal");
  EXPECT_THAT(refusal("dp_shard=2,pp=2,zero=2"), HasSubstr("stages keep whole parameters and gradients"));
  EXPECT_THAT(refusal("zero=1"), HasSubstr("each is on one rank only"));
  EXPECT_THAT(refusal("dp_shard=4,zero=2,reshard=no"), HasSubstr("here zero is 2; leave reshard=no out"));
  EXPECT_THAT(refusal("tp=2,sync=step"), HasSubstr("each is on one rank only; use dp_shard above 1"));
  EXPECT_THAT(refusal("dp_shard=6,reshard=4"), HasSubstr("use reshard=3"));
  EXPECT_THAT(refusal("dp_shard=4,reshard=4"), HasSubstr("use reshard=all"));
  EXPECT_THAT(refusal("dp_shard=3,reshard=2"), HasSubstr("use reshard=no"));
  EXPECT_THAT(refusal("dp_shard=4,zero=2,prefetch=2"), HasSubstr("here zero is 2; leave prefetch=2 out"));
  EXPECT_THAT(refusal("dp_shard=4,reshard=no,prefetch=2"), HasSubstr("so that no gather waits"));
  EXPECT_THAT(refusal("dp_shard=4,zero=1,bucket=2"), HasSubstr("here zero is 1; leave bucket=2 out"));
  EXPECT_THAT(refusal("threshold=7"), HasSubstr("use dp_shard above 1, or leave threshold=7 out"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("dp_shard=2,bucket=0"); }),
              HasSubstr("bucket=0 is not a number from 1 to 64"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("dp_shard=2,threshold=many"); }),
              HasSubstr("threshold=many is not a number from 0 to"));
  StepRequest predicts = request_of("dp_shard=2,bucket=2");
  predicts.model.prediction_layers = 1;
  EXPECT_THAT(refuse(predicts.model, predicts.workload, predicts.layout)->text(),
              HasSubstr("would be in a bucket with layers before it; use bucket=1"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("dp_shard=2,prefetch=17"); }),
              HasSubstr("prefetch=17 is not a number from 0 to 16"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("dp_shard=2,reshard=-1"); }),
              HasSubstr("reshard=-1 is unknown; use all"));
  EXPECT_THAT(message_of([] { parse_parallel_layout("dp_shard=2,sync=never"); }),
              HasSubstr("use micro_batch (gradients are reduced behind each layer) or step"));
  EXPECT_THAT(refusal("sequence_parallel=no"), HasSubstr("mean the same with tp=1"));
  EXPECT_THAT(refusal("mlp_chunks=65"), HasSubstr("a layer has at most 64 chunks; use mlp_chunks=64"));
  StepRequest experts = request_of("mlp_chunks=4");
  experts.model.experts = Experts{8, 2, 768};
  EXPECT_THAT(refuse(experts.model, experts.workload, experts.layout)->text(),
              HasSubstr("mlp_chunks=4 does not apply to the 8 experts"));
  StepRequest serving = request_of("activations=host");
  serving.workload.phase = Phase::prefill, serving.layout.micro_batch = 8;
  EXPECT_THAT(refuse(serving.model, serving.workload, serving.layout)->text(), HasSubstr("activations=gpu"));
}

// ---- what is sharded ----

TEST(StepChoices, ShardedStatesAreGatheredOnceAStep) {
  // Parameters of a layer, and of the ends; four ranks, each sends a quarter to three others.
  const StepRequest three = request_of("dp_shard=4"), two = request_of("dp_shard=4,zero=2"),
                    one = request_of("dp_shard=4,zero=1");
  const std::int64_t layer = 512 * (2 * 1024 + 2 * 512) + 3 * 512 * 1280 + 2 * 512,
                     ends = 2 * 4096 * 512 + 512, all = 8 * layer + ends;
  const std::int64_t gathered = 3 * k16 * all / 4, scattered = 3 * kF32 * all / 4,
                     again = 3 * k16 * 8 * layer / 4;
  const auto micro_batch = [](const StepRequest& r) {
    return sent_by(step_plan(r, StepPart::micro_batch, 0, 1));
  };
  const auto update = [](const StepRequest& r) { return sent_by(step_plan(r, StepPart::update, 0, 1)); };
  EXPECT_THAT(micro_batch(three), UnorderedElementsAre(Pair("fsdp all_gather", gathered + again),
                                                       Pair("fsdp_reduce reduce_scatter", scattered)));
  EXPECT_THAT(micro_batch(two), UnorderedElementsAre(Pair("fsdp_reduce reduce_scatter", scattered)));
  EXPECT_THAT(micro_batch(one), UnorderedElementsAre());
  EXPECT_EQ(update(three).count("fsdp all_gather"), 0u);
  EXPECT_EQ(update(two).at("fsdp all_gather"), gathered);
  EXPECT_EQ(update(two).count("fsdp_reduce reduce_scatter"), 0u);
  EXPECT_EQ(update(one).at("fsdp all_gather"), gathered);
  EXPECT_EQ(update(one).at("fsdp_reduce reduce_scatter"), scattered);
}

// What is kept of a layer is not gathered from all again, and gradients that stay are reduced once.
TEST(StepChoices, KeptParametersAndGradientsTravelLess) {
  const std::int64_t layer = 512 * (2 * 1024 + 2 * 512) + 3 * 512 * 1280 + 2 * 512,
                     ends = 2 * 4096 * 512 + 512, all = 8 * layer + ends;
  const std::int64_t gathered = 3 * k16 * all / 4, scattered = 3 * kF32 * all / 4;
  const auto sent = [](const char* layout, StepPart part) {
    return sent_by(step_plan(request_of(layout), part, 0, 1));
  };
  const auto micro_batch = StepPart::micro_batch, update = StepPart::update;
  EXPECT_THAT(
      sent("dp_shard=4,reshard=no", micro_batch),
      UnorderedElementsAre(Pair("fsdp all_gather", gathered), Pair("fsdp_reduce reduce_scatter", scattered)));
  // Half of each layer, to one neighbour.
  EXPECT_THAT(sent("dp_shard=4,reshard=2", micro_batch),
              UnorderedElementsAre(Pair("fsdp all_gather", gathered),
                                   Pair("fsdp_kept all_gather", k16 * 8 * layer / 2),
                                   Pair("fsdp_reduce reduce_scatter", scattered)));
  EXPECT_THAT(sent("dp_shard=4,reshard=no,sync=step", micro_batch),
              UnorderedElementsAre(Pair("fsdp all_gather", gathered)));
  const auto once = sent("dp_shard=4,sync=step", update);
  EXPECT_EQ(once.at("fsdp_reduce reduce_scatter"), scattered);
  EXPECT_EQ(once.count("fsdp all_gather"), 0u) << "parameters stay sharded";
}

// As many slots as layers that are gathered ahead, and the one at work; what travels is the same.
TEST(StepChoices, LayersAheadHaveSlots) {
  const std::int64_t layer = 512 * (2 * 1024 + 2 * 512) + 3 * 512 * 1280 + 2 * 512;
  const auto usual = sent_by(step_plan(request_of("dp_shard=4"), StepPart::micro_batch, 0, 1));
  for (const int ahead : {0, 1, 2, 3, 5, 7, 16}) {
    const StepRequest request = request_of(str("dp_shard=4,prefetch=", ahead).c_str());
    const Plan plan = step_plan(request, StepPart::micro_batch, 0, 1);
    const auto slots = std::find_if(plan.buffers.begin(), plan.buffers.end(),
                                    [](const Buffer& buffer) { return buffer.name == "unsharded/layers"; });
    EXPECT_EQ(slots->numel, std::min(ahead + 1, 8) * layer) << ahead;
    EXPECT_EQ(sent_by(plan), usual) << ahead;
  }
}

// Of 8 layers in threes, two buckets have three layers and one has two: three gathers in each pass, and three
// reductions. What travels is the same, since nothing is padded.
TEST(StepChoices, BucketsAreGatheredAndReducedAtOnce) {
  const auto count = [](const StepRequest& request, const char* label) {
    std::int64_t times = 0;
    const Plan plan = step_plan(request, StepPart::micro_batch, 0, 1);
    for (const StepRef& ref : steps_of(plan)) times += ref.step->label == label ? ref.count : 0;
    return times;
  };
  const StepRequest each = request_of("dp_shard=4"), threes = request_of("dp_shard=4,bucket=3");
  constexpr std::int64_t kEnds = 2;  // the embedding and the head
  EXPECT_EQ(count(each, "unshard"), 8 + 8 + kEnds);
  EXPECT_EQ(count(threes, "unshard"), 3 + 3 + kEnds);
  EXPECT_EQ(count(each, "reduce gradients"), 8 + kEnds);
  EXPECT_EQ(count(threes, "reduce gradients"), 3 + kEnds);
  EXPECT_EQ(sent_by(step_plan(threes, StepPart::micro_batch, 0, 1)),
            sent_by(step_plan(each, StepPart::micro_batch, 0, 1)));
  // One padding for a bucket: of 7 ranks, which divide neither.
  const auto gathered = [](const char* layout) {
    StepRequest request = request_of(layout);
    request.workload.global_batch = 7;
    return sent_by(step_plan(request, StepPart::micro_batch, 0, 1)).at("fsdp all_gather");
  };
  EXPECT_LT(gathered("dp_shard=7,bucket=4"), gathered("dp_shard=7"));
}

// Norms have 512 elements, all else has more: of them nothing is gathered, and their gradients are added up
// in the update alone.
TEST(StepChoices, SmallTensorsStayWhole) {
  const std::int64_t norms = std::int64_t{17} * 512;  // two of each of 8 layers, and the final one
  const StepRequest all = request_of("dp_shard=4"), large = request_of("dp_shard=4,threshold=513");
  const auto sent = [](const StepRequest& request, StepPart part) {
    return sent_by(step_plan(request, part, 0, 1));
  };
  const auto of_all = sent(all, StepPart::micro_batch), of_large = sent(large, StepPart::micro_batch);
  // The head's norm is gathered once, those of layers twice.
  EXPECT_EQ(of_all.at("fsdp all_gather") - of_large.at("fsdp all_gather"), 3 * k16 * (2 * norms - 512) / 4);
  EXPECT_EQ(of_all.at("fsdp_reduce reduce_scatter") - of_large.at("fsdp_reduce reduce_scatter"),
            3 * kF32 * norms / 4);
  // What is all-reduced counts once for each of three peers.
  EXPECT_EQ(sent(large, StepPart::update).at("fsdp_reduce all_reduce"), 3 * kF32 * norms);
  EXPECT_EQ(sent(all, StepPart::update).count("fsdp_reduce all_reduce"), 0u);
  // The same threshold as the norms' size leaves them sharded.
  EXPECT_EQ(sent(request_of("dp_shard=4,threshold=512"), StepPart::micro_batch), of_all);
  // Beyond all tensors nothing is sharded.
  EXPECT_EQ(sent(request_of("dp_shard=4,threshold=100000000"), StepPart::micro_batch).size(), 0u);
}

TEST(StepChoices, WhatIsShardedIsTheMemoryThatPlansDeclare) {
  for (const char* layout :
       {"dp_shard=4,sync=step", "dp_shard=4,prefetch=0", "dp_shard=4,prefetch=3,reshard=2",
        "dp_shard=4,bucket=3", "dp_shard=4,bucket=2,threshold=513", "dp_shard=4,bucket=3,reshard=no",
        "dp_shard=4,threshold=513,sync=step", "dp_shard=4,zero=1", "dp_shard=4,zero=2",
        "tp=2,dp_shard=4,zero=1", "cp=4,strategy=ring,zero=2", "dp_replicate=2,dp_shard=4,zero=1"}) {
    for (const char* optimizer : {"adamw", "adamw:offload", "sgd"}) {
      for (const DType gradients : {DType::f32, DType::bf16}) {
        StepRequest request = request_of(layout, optimizer);
        request.workload.gradient_dtype = gradients;
        const Memory memory = least_of(request);
        const Plan step = step_plan(request, StepPart::micro_batch, 0, 0),
                   update = step_plan(request, StepPart::update, 0, 0);
        const auto where = str(to_string(request.layout), " ", optimizer, " ", name(gradients));
        const Plan& reads = request.layout.keeps_whole_parameters() ? update : step;
        EXPECT_EQ(memory.parameters, bytes_of(reads, "parameters")) << where;
        EXPECT_EQ(memory.optimizer, bytes_of(update, "optimizer")) << where;
        if (request.layout.keeps_whole_gradients()) {  // the update makes shards of them
          EXPECT_EQ(memory.gradients, 0) << where;
        } else {
          EXPECT_EQ(memory.gradients, bytes_of(step, "gradients")) << where;
        }
        // Parameters, and with zero=1 gradients.
        EXPECT_EQ(memory.gathered, bytes_of(step, "unsharded", false)) << where;
        std::int64_t on_the_way = 0;  // of layers
        for (const Buffer& buffer : step.buffers) {
          const bool again = buffer.name.ends_with("cast gradients");  // in another dtype, behind the layer
          if (buffer.kind == BufferKind::temporary && buffer.name.starts_with("unsharded/layers") && !again)
            on_the_way += buffer.bytes();
        }
        EXPECT_EQ(memory.unsharded, on_the_way) << where;
      }
    }
  }
  // While the loss is at work: the head and two slots of layers with zero=3, gradients of the head with
  // zero=2, behind the first chunk, and nothing with zero=1.
  const std::int64_t head = 4096 * 512 * k16;
  const auto slots_of = [&](const char* layout) {
    const StepRequest request = request_of(layout);
    const Plan step = step_plan(request, StepPart::micro_batch, 0, 0);
    const auto slots = std::find_if(step.buffers.begin(), step.buffers.end(),
                                    [](const Buffer& buffer) { return buffer.name == "unsharded/layers"; });
    return slots == step.buffers.end() ? 0 : slots->bytes();
  };
  const auto logits = [](const char* layout) { return least_of(request_of(layout)).logits; };
  EXPECT_EQ(logits("dp_shard=4") - logits("dp_shard=4,zero=2"), head + slots_of("dp_shard=4"));
  EXPECT_EQ(logits("dp_shard=4,zero=2"), logits("dp_shard=4,zero=1"));
  EXPECT_EQ(logits("dp_shard=4,zero=2,loss_chunks=4") - logits("dp_shard=4,zero=1,loss_chunks=4"), head);
}

// With zero=2 pieces are padded one by one.
TEST(StepChoices, UnevenPiecesAreGatheredEach) {
  for (const char* layout : {"dp_shard=2,cp=3,strategy=ring,zero=2", "cp=3,strategy=ring,zero=1"}) {
    const StepRequest request = small_request(layout);
    for (const StepPart part : parts_of(request))
      EXPECT_NO_THROW(plans_of_all_ranks(request, part)) << layout;
  }
}

// ---- rows between tensor-parallel regions ----

TEST(StepChoices, WholeRowsAreAllReduced) {
  // All rows of 512 in bf16 to the other of two ranks, half of them there and half of the sums back: twice a
  // layer in each direction, for the embedding and for the head.
  const std::int64_t rows = 4096 * 512 * k16, layers = 8, statistics = 4096 * 3 * kF32;
  const StepRequest whole = request_of("tp=2,sequence_parallel=no");
  EXPECT_THAT(sent_by(step_plan(whole, StepPart::micro_batch, 0, 1)),
              UnorderedElementsAre(Pair("tp all_reduce", (4 * layers + 2) * rows + statistics)));
  // Every rank's norms have seen all rows: there is nothing to add up.
  EXPECT_EQ(sent_by(step_plan(whole, StepPart::update, 0, 1)).count("tp all_reduce"), 0u);
  // But norms of q and k have seen a rank's own heads, and routers what came of its own columns.
  StepRequest norms = whole;
  norms.model.qk_norm = true;
  EXPECT_EQ(sent_by(step_plan(norms, StepPart::update, 0, 1)).at("tp all_reduce"), layers * 2 * 64 * kF32);
  StepRequest experts = whole;
  experts.model.experts = Experts{8, 2, 768};
  EXPECT_EQ(sent_by(step_plan(experts, StepPart::update, 0, 1)).at("tp all_reduce"), layers * 8 * 512 * kF32);
  // A layer's input, its norms' outputs and the residual are there twice as long.
  const Memory split = least_of(request_of("tp=2")), all = least_of(whole);
  EXPECT_EQ(all.activations - split.activations, layers * 4 * rows / 2);
  // Rows are not gathered, and the gradient of a layer's rows is of all of them.
  EXPECT_EQ(all.working, split.working - rows + rows / 2);
  const Plan plan = step_plan(whole, StepPart::micro_batch, 0, 0);
  EXPECT_EQ(all.activations, bytes_of(plan, "activations") - rows);
}

TEST(StepChoices, StagesExchangeWholeRows) {
  const StepRequest request = request_of("tp=2,pp=2,sequence_parallel=no");
  EXPECT_EQ(sent_by(step_plan(request, StepPart::send_forward, 0, 0)).at("pp exchange"),
            std::int64_t{4096} * 512 * k16);
}

// ---- what grows with cp ----

// Of a sequence that is as many times as long on as many ranks, each rank has the same rows, and a longer
// table of positions.
TEST(StepChoices, ALongerSequenceOnMoreRanksTakesItsTableOfPositions) {
  const StepRequest one = request_of("dp_shard=8");
  StepRequest eight = request_of("cp=8,strategy=ring,balance=head_tail");
  eight.workload.seq_len *= 8;
  EXPECT_EQ(least_of(eight).activations - least_of(one).activations, kF32 * 7 * 4096 * 64);
  const Plan plan = step_plan(eight, StepPart::micro_batch, 0, 3);
  std::int64_t table = 0;
  for (const Buffer& buffer : plan.buffers)
    table += buffer.name == "activations/positions" ? buffer.bytes() : 0;
  EXPECT_EQ(table, 8 * 4096 * 64 * kF32);
}

// ---- pieces of an MLP ----

TEST(StepChoices, ChunksOfAnMlpAreNotKept) {
  const std::int64_t tokens = 4096, columns = 1280, hidden = 512;
  const Memory whole = least_of(request_of("tp=1")), chunks = least_of(request_of("mlp_chunks=4"));
  EXPECT_EQ(whole.activations - chunks.activations, 8 * tokens * 3 * columns * k16);
  const Plan plan = step_plan(request_of("mlp_chunks=4"), StepPart::micro_batch, 0, 0);
  EXPECT_EQ(chunks.activations, bytes_of(plan, "activations") - tokens * hidden * k16);
  // Gradients of q and k before their rotation and behind it, which are more than those of a piece of the
  // MLP.
  EXPECT_EQ(chunks.working, tokens * (hidden + 2 * 1024 + 2 * 512) * k16);
  std::int64_t inside = 0;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.name.ends_with("gate_up") || buffer.name.ends_with("activated")) inside += buffer.bytes();
  }
  // Forward and backward have buffers of their own; the backward pass has two of each.
  EXPECT_EQ(inside, (1 + 2) * tokens / 4 * 3 * columns * k16);
}

// Gradients of weights are sums over the chunks: the first one writes them where they are a layer's alone,
// the others add.
TEST(StepChoices, ChunksAddUpTheirGradients) {
  for (const auto& [layout, adds] : {std::pair{"mlp_chunks=3", 3}, std::pair{"dp_shard=4,mlp_chunks=3", 2}}) {
    const Plan plan = step_plan(request_of(layout), StepPart::micro_batch, 0, 0);
    for (const char* label : {"gate, up, wgrad", "down, wgrad"}) {
      std::vector<bool> accumulates;
      std::int64_t rows = 0;
      for (const StepRef& ref : steps_of(plan)) {
        if (ref.step->label != label) continue;
        const MatMul& product = std::get<MatMul>(std::get<Kernel>(ref.step->work));
        accumulates.push_back(product.accumulate);
        rows += product.a.shape[1];
      }
      EXPECT_EQ(accumulates.size(), 3u) << layout;
      EXPECT_EQ(std::count(accumulates.begin(), accumulates.end(), true), adds) << layout << " " << label;
      EXPECT_EQ(accumulates.front(), adds == 3) << layout << " " << label;
      EXPECT_EQ(rows, 4096) << layout;
    }
  }
}

// ---- host memory ----

TEST(StepChoices, WhatLayersKeepGoesToTheHostAndComesBack) {
  for (const char* layout :
       {"activations=host", "activations=host,recompute=full", "tp=2,activations=host,recompute=every:2",
        "activations=host,recompute=selective,mlp_chunks=4", "activations=host,cp=4,strategy=ulysses"}) {
    StepRequest request = request_of(layout);
    const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
    EXPECT_EQ(least_of(request).activations, bytes_of(plan, "activations")) << layout;
    // As much as without, but for the last layer's output, there and back.
    StepRequest stays = request;
    stays.layout.host_activations = false;
    const std::int64_t positions = kF32 * 4096 * 64, kept = least_of(stays).activations - positions;
    EXPECT_EQ(moved_on(plan, "to_host"), kept) << layout;
    EXPECT_EQ(moved_on(plan, "from_host"), kept) << layout;
    EXPECT_EQ(bytes_of(plan, "host/activations"), kept) << layout;
    for (const Buffer& buffer : plan.buffers)
      EXPECT_FALSE(lies_on_host(buffer) && buffer.kind == BufferKind::temporary) << buffer.name;
  }
  // Of stages: as little, however many micro-batches are in flight, of rows alone.
  StepRequest stages = request_of("pp=2,activations=host");
  EXPECT_EQ(least_of(stages).activations, kF32 * 4096 * 64 + k16 * 2 * 4096 * 512);
  EXPECT_GT(moved_on(step_plan(stages, StepPart::backward, 0, 0), "from_host"), 0);
  EXPECT_EQ(moved_on(step_plan(stages, StepPart::backward, 0, 0), "to_host"), 0);
}

// Of layers with experts and without, each kind has two slots of what the other one lacks.
TEST(StepChoices, LayersOfBothKindsHaveSlotsOnTheirOwn) {
  for (const char* layout :
       {"activations=host", "activations=host,recompute=full", "tp=2,activations=host,recompute=every:3",
        "activations=host,recompute=selective", "activations=host,recompute=every:2"}) {
    StepRequest request = request_of(layout);
    request.model.experts = Experts{8, 2, 768, 256};
    std::vector<LayerKind> layers(8);
    for (const std::size_t layer : {0U, 1U, 4U, 6U}) layers[layer].dense = true;
    set_layers(request.model, layers);
    const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
    EXPECT_EQ(least_of(request).activations, bytes_of(plan, "activations")) << layout;
    StepRequest stays = request;
    stays.layout.host_activations = false;
    const std::int64_t positions = std::int64_t{4096} * 64 * kF32,
                       kept = least_of(stays).activations - positions;
    EXPECT_EQ(moved_on(plan, "to_host"), kept) << layout;
    EXPECT_EQ(moved_on(plan, "from_host"), kept) << layout;
  }
}

// The next layer's forward pass does not wait until what a layer keeps has been sent, but the one behind that
// does.
TEST(StepChoices, SlotsOfActivationsTakeTurns) {
  const StepRequest request = request_of("activations=host,recompute=full");
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
  std::set<std::int64_t> periods;
  for (const StepRef& ref : steps_of(plan)) {
    if (ref.step->label != "activations to the host") continue;
    periods.insert(std::get<Copy>(std::get<Kernel>(ref.step->work)).in.advance.period);
  }
  EXPECT_THAT(periods, ::testing::ElementsAre(2));
}

TEST(StepChoices, GradientsGoToTheHostAsSoonAsTheyAreComplete) {
  const std::int64_t layer = 512 * (2 * 1024 + 2 * 512) + 3 * 512 * 1280 + 2 * 512,
                     ends = 2 * 4096 * 512 + 512, all = 8 * layer + ends;
  struct Case {
    const char* layout;
    std::int64_t ranks, while_backward;  // shares of gradients that go in the backward pass
  };
  for (const Case& of : {Case{"tp=1", 1, 1}, Case{"dp_shard=4", 4, 1}, Case{"dp_shard=4,zero=2", 4, 1},
                         Case{"dp_shard=4,zero=1", 4, 0}, Case{"dp_replicate=2,dp_shard=4", 4, 0}}) {
    const StepRequest request = request_of(of.layout, "adamw:offload");
    const Plan step = step_plan(request, StepPart::micro_batch, 0, 0),
               update = step_plan(request, StepPart::update, 0, 0);
    const std::int64_t gradients = all / of.ranks * kF32;
    EXPECT_EQ(moved_on(step, "to_host"), of.while_backward * gradients) << of.layout;
    EXPECT_EQ(moved_on(update, "to_host"), (1 - of.while_backward) * gradients + kF32)
        << of.layout;  // the norm
    EXPECT_EQ(moved_on(update, "from_host"), all / of.ranks * k16) << of.layout;
    // f32 parameters, two states, and parameters in bf16.
    EXPECT_EQ(moved_on(update, "host"), all / of.ranks * (3 * kF32 + k16)) << of.layout;
    EXPECT_EQ(bytes_of(update, "host/optimizer"), all / of.ranks * 2 * kF32) << of.layout;
    EXPECT_EQ(bytes_of(update, "optimizer") + bytes_of(update, "master"), 0) << of.layout;
  }
}

// Of eight layers every second one has a window of 128 tokens. These bring what the window reaches of the
// rank before, 127 rows of k and v, and send the gradients back; all other layers gather all rows.
TEST(StepChoices, LayersWithAWindowMayHaveACoreOfTheirOwn) {
  StepRequest alike = request_of("cp=4,strategy=all_gather,balance=contiguous,micro_batch=8");
  std::vector<LayerKind> layers(8);
  for (const std::size_t layer : {0U, 2U, 4U, 6U}) layers[layer].window = 128;
  set_layers(alike.model, layers);
  StepRequest apart = alike;
  apart.layout = parse_parallel_layout(to_string(alike.layout) + ",window_strategy=need_only");
  const auto sent = [](const StepRequest& request) {
    return sent_by(step_plan(request, StepPart::micro_batch, 0, 1));
  };
  const std::int64_t kv = 2 * 8 * 64, rows = 8 * 1024, reached = 8 * 127;  // of 8 sequences
  EXPECT_EQ(sent(alike).at("ring all_gather"), 2 * 8 * 3 * rows * kv * k16);
  EXPECT_EQ(sent(alike).count("ring exchange"), 0U);
  EXPECT_EQ(sent(apart).at("ring all_gather"), 2 * 4 * 3 * rows * kv * k16);
  EXPECT_EQ(sent(apart).at("ring exchange"), 4 * (2 * reached * kv * k16 + reached * kv * kF32));
}

}  // namespace
}  // namespace cp::testing
