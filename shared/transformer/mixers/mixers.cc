#include "shared/transformer/mixers/mixers.h"

#include <algorithm>

namespace cp {

const std::vector<const MixerFacts*>& mixers_beside_attention() {
  static const std::vector<const MixerFacts*> all = {&kRecurrenceMixer, &kShortConvolutionMixer};
  return all;
}

void forget_unused_mixers(Transformer& model) {
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (!model.has(facts->mixer)) facts->forget(model);
  }
}

const MixerFacts* facts_of(Mixer mixer) {
  const auto& all = mixers_beside_attention();
  const auto row =
      std::find_if(all.begin(), all.end(), [&](const MixerFacts* facts) { return facts->mixer == mixer; });
  return row == all.end() ? nullptr : *row;
}

}  // namespace cp
