#include "shared/transformer/living_buffers.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "shared/transformer/least_memory.h"
#include "shared/transformer/memory_reading.h"
#include "tests/transformer/step_requests.h"

namespace cp {
namespace {

using ::testing::UnorderedElementsAre;

// Layers of 'd', which are dense, 'e', which have experts, 's', scans alone, and 'm', MLPs alone.
constexpr LayerParts kDense{Mixer::attention, Mlp::dense}, kExperts{Mixer::attention, Mlp::experts},
    kScans{Mixer::recurrence, Mlp::none}, kMlps{Mixer::none, Mlp::dense};
constexpr std::string_view kLetters = "desm";
const std::vector<LayerParts> kPartsOfLetters = {kDense, kExperts, kScans, kMlps};

std::string letters_of(UnitSet units) {
  std::string letters;
  for (std::size_t i = 0; i < kLetters.size(); ++i) {
    if ((units & unit_of(kPartsOfLetters[i])) != 0) letters += kLetters[i];
  }
  return letters + ((units & kExpertUnit) != 0 ? "x" : "");
}

// "gathered/gradients made/stacks" of each moment at which a layer with these parts goes back, where the
// stacks are those of layers with attention (a), recurrence (r), a dense MLP (d), and experts (e).
std::vector<std::string> moments(const std::string& layers, LayerParts of, Recompute recompute = {}) {
  std::vector<int> kinds;
  for (const char letter : layers) kinds.push_back(static_cast<int>(kLetters.find(letter)));
  std::vector<std::string> texts;
  const LivingBuffers living = living_buffers({kinds, kPartsOfLetters}, recompute);
  for (const LivingBuffers::Moment& moment : living.at[of]) {
    std::string stacks;
    for (const auto& [what, letter] :
         {std::pair{Having::attention, 'a'}, std::pair{having(Mixer::recurrence), 'r'},
          std::pair{Having::dense, 'd'}, std::pair{Having::experts, 'e'}})
      if ((moment.kept & stack_of(what, 0)) != 0) stacks += letter;
    texts.push_back(letters_of(moment.gathered) + "/" + letters_of(moment.reduced) + "/" + stacks);
  }
  return texts;
}

TEST(LivingBuffers, OfOneRepeatAreItsOwn) {
  EXPECT_THAT(moments("dddd", kDense), UnorderedElementsAre("d//ad"));
  EXPECT_THAT(moments("smsmsm", kScans), UnorderedElementsAre("sm//rd"));
}

TEST(LivingBuffers, OfWhatComesBehindAreGone) {
  EXPECT_THAT(moments("ddeeee", kDense), UnorderedElementsAre("d//ad"));
  EXPECT_THAT(moments("ddeeee", kExperts), UnorderedElementsAre("dex//ade"));
  // A layer that is alone uses what it kept up.
  EXPECT_THAT(moments("deeee", kDense), UnorderedElementsAre("d//"));
}

TEST(LivingBuffers, OfSeveralRepeatsLiveBetweenThem) {
  // The first stretch is sm, sm; then d alone; then sm, sm.
  EXPECT_THAT(moments("smsmdsmsm", kScans), UnorderedElementsAre("sm/sm/rd", "dsm/sm/ard"));
  // What the last of these makes lives until the first has made its own.
  EXPECT_THAT(moments("smsmdsmsm", kDense), UnorderedElementsAre("dsm/sm/rd"));
  // Four layers and one behind them are two stretches.
  EXPECT_THAT(moments("ddddd", kDense, {Recompute::Kind::every, 2}), UnorderedElementsAre("d/d/ad", "d//ad"));
}

// Of hybrid models at real sizes, as a search meets them: patterns that change, and states of scans.
TEST(LivingBuffers, MakeTheLeastMemoryOfHybridModelsNear) {
  StepRequest request;
  Transformer& model = request.model;
  model.name = "hybrid", model.hidden = 4096, model.layers = 26, model.q_heads = 32, model.kv_heads = 8;
  model.head_dim = 128, model.intermediate = 21504, model.vocab = 131072, model.gated_mlp = false;
  model.recurrence = Recurrence{RecurrenceRule::decay, 8, 128, 128, 64, 4, true};
  const LayerKind scan{{}, {}, false, Mixer::recurrence, false}, mlp{{}, {}, false, Mixer::none, true},
      attention{{}, {}, false, Mixer::attention, false};
  std::vector<LayerKind> layers;
  for (const char letter : std::string("smsmsmsamsmsmsmsamsmsmsmsm"))
    layers.push_back(letter == 's' ? scan : letter == 'm' ? mlp : attention);
  set_layers(model, layers);
  request.workload.seq_len = 16384, request.workload.global_batch = 256;
  for (const char* layout :
       {"dp_shard=32", "cp=2,dp_shard=16,balance=head_tail", "cp=8,dp_shard=4,scan=sequential,micro_batch=4",
        "cp=16,dp_shard=2,scan=all_gather,micro_batch=8", "tp=2,cp=2,dp_shard=8,balance=head_tail",
        "cp=16,pp=2,balance=head_tail,scan=sequential", "cp=16,pp=2,balance=head_tail,scan=all_gather"}) {
    for (const char* recompute : {"none", "selective", "every:4"}) {
      request.layout = parse_parallel_layout(layout);
      request.layout.recompute = parse_recompute(recompute);
      const MemoryRules rules;
      const auto least = static_cast<double>(
                     least_memory_of(model, request.workload, request.layout, rules).allocated()),
                 memory = static_cast<double>(memory_of(request, rules).allocated());
      EXPECT_LE(least, memory) << to_string(request.layout);
      EXPECT_GE(least, 0.9 * memory) << to_string(request.layout);
    }
  }
}

}  // namespace
}  // namespace cp
