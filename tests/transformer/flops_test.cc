#include "shared/transformer/flops.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/transformer/parallel_layout.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

Transformer two_layers() {
  Transformer model;
  model.hidden = 64, model.layers = 2, model.q_heads = 4, model.kv_heads = 2, model.head_dim = 16;
  model.intermediate = 96, model.vocab = 100;
  return model;
}

// A token meets, in each layer, q and out 2 x 64 x 64, k and v 2 x 64 x 32, and the MLP 3 x 64 x 96; and the
// head 64 x 100.
TEST(ModelFlops, ByHand) {
  Workload workload;
  workload.seq_len = 10, workload.global_batch = 3;
  const double layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96), head = 64 * 100;
  const ModelFlops training = model_flops(two_layers(), workload);
  EXPECT_EQ(training.products, 6 * 3 * 10 * (layers + head));
  EXPECT_EQ(training.attention, 3 * 4 * 3 * 16 * 4 * 2 * 55.0);
  workload.phase = Phase::prefill, workload.cached = 6;  // queries 6 to 9 see 7, 8, 9 and 10 keys
  const ModelFlops prefill = model_flops(two_layers(), workload);
  EXPECT_EQ(prefill.products, 2 * 3 * (4 * layers + head));
  EXPECT_EQ(prefill.attention, 4 * 3 * 16 * 4 * 2 * 34.0);
  workload.phase = Phase::decode, workload.cached = 9, workload.new_tokens = 1;
  const ModelFlops decode = model_flops(two_layers(), workload);
  EXPECT_EQ(decode.products, 2 * 3 * (layers + head));
  EXPECT_EQ(decode.attention, 4 * 3 * 16 * 4 * 2 * 10.0);
}

// Latent rows of 24, and of 20 with 4 beside them; heads of 12 + 4 and values of 10.
TEST(ModelFlops, OfLatentAttentionByHand) {
  Workload workload;
  workload.seq_len = 10;
  Transformer model = two_layers();
  model.kv_heads = 4, model.latent = Latent{24, 20, 4, 10};
  const double attention = 64 * 24 + 24 * 64 + 64 * (20 + 4) + 20 * 4 * (12 + 10) + 4 * 10 * 64;
  EXPECT_EQ(model_flops(model, workload).products, 6 * 10 * (2 * (attention + 3 * 64 * 96) + 64 * 100));
  EXPECT_EQ(model_flops(model, workload).attention, 3 * 2 * (16 + 10) * 4 * 2 * 55.0);
  model.latent->q_rank = 0;  // queries are projected at once
  EXPECT_EQ(model_flops(model, workload).products,
            6 * 10 * (2 * (attention - 2 * 64 * 24 + 64 * 64 + 3 * 64 * 96) + 64 * 100));
}

// One of two layers has a state of 8 x 5 elements in each of 4 heads, of which each row is written and read
// once, and by the delta rule read once more.
TEST(ModelFlops, OfRecurrencesByHand) {
  Workload workload;
  workload.seq_len = 10, workload.global_batch = 3;
  Transformer model = two_layers();
  LayerKind recurrent;
  recurrent.mixer = Mixer::recurrence;
  set_layers(model, {recurrent, {}});
  const double state = 4 * 8 * 5;
  model.recurrence = Recurrence{RecurrenceRule::delta, 2, 4, 8, 5, 4, false};
  EXPECT_EQ(model_flops(model, workload).recurrence, 3 * 2 * 3 * 10 * 3 * state);
  EXPECT_EQ(model_flops(model, workload).attention, 3 * 4 * 3 * 16 * 4 * 55.0);
  model.recurrence->rule = RecurrenceRule::decay;
  EXPECT_EQ(model_flops(model, workload).recurrence, 3 * 2 * 3 * 10 * 2 * state);
  workload.phase = Phase::decode, workload.cached = 9, workload.new_tokens = 1;
  EXPECT_EQ(model_flops(model, workload).recurrence, 2 * 3 * 2 * state);
}

TEST(ModelFlops, TiedOnesMeetTheirHeadToo) {
  Workload workload;
  workload.seq_len = 10;
  Transformer tied = two_layers();
  tied.tied_embeddings = true;
  EXPECT_EQ(model_flops(tied, workload).products, model_flops(two_layers(), workload).products);
}

TEST(ModelFlops, OfExpertsThoseThatATokenGoesTo) {
  Workload workload;
  workload.seq_len = 10;
  Transformer model = two_layers();
  model.experts = Experts{8, 2, 48};
  EXPECT_EQ(model_flops(model, workload).products,
            6 * 10 * (2 * (2 * 64 * 64 + 2 * 64 * 32 + 2.0 * 3 * 64 * 48 + 64 * 8) + 64 * 100));
}

// One layer is dense, 96 wide; in the other one a token goes to two experts and the shared one.
TEST(ModelFlops, OfDenseLayersAndSharedExpertsAllTokens) {
  Workload workload;
  workload.seq_len = 10;
  Transformer model = two_layers();
  model.intermediate = 96, model.experts = Experts{8, 2, 48, 40};
  set_layers(model, {{{}, {}, true}, {}});
  const double attention = 2 * 64 * 64 + 2 * 64 * 32;
  EXPECT_EQ(model_flops(model, workload).products,
            6 * 10 * (2 * attention + 3 * 64 * 96 + 3 * 64 * (2 * 48 + 40) + 64 * 8 + 64 * 100));
}

RC_GTEST_PROP(ModelFlops, PairsAreThoseOfTheMask, ()) {
  Transformer model = two_layers();
  Workload workload;
  workload.seq_len = pick("workload.seq_len", rc::gen::inRange<std::int64_t>(2, 90));
  workload.phase = pick("workload.phase", rc::gen::element(Phase::training, Phase::prefill));
  if (workload.phase == Phase::prefill)
    workload.cached = pick("workload.cached", rc::gen::inRange<std::int64_t>(0, workload.seq_len));
  std::vector<LayerKind> layers(2);
  for (LayerKind& kind : layers) {
    if (pick("whether window", rc::gen::arbitrary<bool>()))
      kind.window = pick("window", rc::gen::inRange<std::int64_t>(1, 100));
    if (pick("whether chunk", rc::gen::arbitrary<bool>()))
      kind.chunk = pick("chunk", rc::gen::inRange<std::int64_t>(1, 100));
  }
  set_layers(model, layers);
  std::int64_t all = 0;
  for (const LayerKind& kind : layers) {
    std::int64_t pairs = 0;
    for (std::int64_t query = workload.cached; query < workload.seq_len; ++query) {
      const std::int64_t chunk = kind.chunk.value_or(workload.seq_len);
      const std::int64_t first =
          std::max(query / chunk * chunk, query - kind.window.value_or(workload.seq_len) + 1);
      pairs += query - std::max<std::int64_t>(0, first) + 1;
    }
    RC_ASSERT(allowed_pairs(model, workload, kind) == static_cast<double>(pairs));
    all += pairs;
  }
  RC_ASSERT(allowed_pairs(model, workload) == static_cast<double>(all));
}

}  // namespace
}  // namespace cp
