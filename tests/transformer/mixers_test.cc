// The table of mixers beside attention: each has one row, whole, and a name of its own wherever names are.
#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/digest.h"
#include "shared/transformer/mixers/mixer.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

// A model with attention and this mixer, in turn.
Transformer model_with(Mixer mixer) {
  Transformer model = small_model();
  model.recurrence = Recurrence{RecurrenceRule::delta, 4, 8, 4, 6, 4, true};
  model.convolution = ShortConvolution{};
  std::vector<LayerKind> layers(static_cast<std::size_t>(model.layers));
  layers[1].mixer = mixer;
  set_layers(model, layers);
  forget_unused_mixers(model);
  return model;
}

TEST(Mixers, EachBesideAttentionHasOneRow) {
  ASSERT_EQ(kMixers.back(), Mixer::none);
  for (std::size_t i = 0; i < kMixers.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(kMixers[i]), i);
    const auto& rows = mixers_beside_attention();
    const auto own = std::count_if(rows.begin(), rows.end(),
                                   [&](const MixerFacts* facts) { return facts->mixer == kMixers[i]; });
    const bool beside = kMixers[i] != Mixer::attention && kMixers[i] != Mixer::none;
    EXPECT_EQ(own, beside ? 1 : 0) << name(kMixers[i]);
    EXPECT_EQ(facts_of(kMixers[i]) != nullptr, beside);
  }
}

TEST(Mixers, RowsAreWhole) {
  for (const MixerFacts* facts : mixers_beside_attention()) {
    SCOPED_TRACE(name(facts->mixer));
    const auto& [mixer, with_mlp, alone, is_described, forget, has_out_bias, check, parameters, estimated,
                 hash, text, request_bytes, cached_name, dealt, dealt_name, takes, refuse, lay_alike, lay,
                 name_tensors, cache, writer, memory] = *facts;
    EXPECT_TRUE(is_described && forget && has_out_bias && check && parameters && estimated && hash && text);
    EXPECT_TRUE(request_bytes && dealt && takes && refuse && lay_alike && lay && name_tensors);
    EXPECT_TRUE(cache && writer && memory);
    for (const std::string_view word : {with_mlp, alone, cached_name, dealt_name}) EXPECT_FALSE(word.empty());
    const Transformer model = model_with(mixer);
    EXPECT_NO_THROW(validate_model(model));
    EXPECT_TRUE(is_described(model));
    // Roughly as many as there are, for sizes that no 64 bits hold.
    const auto counted = static_cast<double>(parameters(model).matrices);
    EXPECT_GT(estimated(model), 0.5 * counted);
    EXPECT_LT(estimated(model), 2 * counted);
    for (const Mixer other : kMixers) {
      EXPECT_EQ(is_described(model_with(other)), other == mixer) << name(other);
    }
  }
}

// Units of layers, and digests, tell mixers apart.
TEST(Mixers, HaveNamesAndDigestsOfTheirOwn) {
  std::set<std::string_view> names;
  for (const MixerFacts* facts : mixers_beside_attention()) {
    EXPECT_TRUE(names.insert(facts->with_mlp).second);
    EXPECT_TRUE(names.insert(facts->alone).second);
  }
  std::set<std::string> digests;
  for (const Mixer mixer : kMixers) {
    Hasher hasher;
    EXPECT_TRUE(digests.insert(to_string(hash(hasher, model_with(mixer)).digest())).second) << name(mixer);
  }
}

}  // namespace
}  // namespace cp::testing
