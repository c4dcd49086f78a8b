#include "shared/training/token_windows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/transformer/step_buffers.h"

namespace cp {

TokenWindows::TokenWindows(const WindowOptions& options, ReadTokens read, DocumentBegins begins)
    : options_(options), read_(std::move(read)), begins_(std::move(begins)) {
  all_ = std::max<std::int64_t>(0, options.tokens - 1) / options.seq_len;
  const bool evaluates = options.evaluation > 0;
  const std::int64_t least = evaluates ? 2 : 1;
  if (all_ < least)
    throw InvalidInput(str("a text of ", options.tokens, " tokens has ", all_, " sequences of ",
                           options.seq_len, " tokens and one more to predict; ", least,
                           evaluates ? " are needed, one of them for "
                                       "the evaluation"
                                     : " is needed",
                           "; use a longer text, or seq_len ",
                           std::max<std::int64_t>(1, (options.tokens - 1) / least)));
  const auto kept = static_cast<std::int64_t>(std::llround(static_cast<double>(all_) * options.evaluation));
  training_ = evaluates ? all_ - std::clamp<std::int64_t>(kept, 1, all_ - 1) : all_;
}

std::int64_t TokenWindows::evaluation_batches() const {
  return (evaluation_windows() + options_.global_batch - 1) / options_.global_batch;
}

TokenBatch TokenWindows::batch(const std::function<std::int64_t(std::int64_t)>& window_of) const {
  TokenBatch batch;
  for (std::int64_t sequence = 0; sequence < options_.global_batch; ++sequence) {
    const std::int64_t first = window_of(sequence) * options_.seq_len;
    const std::vector<std::int32_t> window = read_(first, options_.seq_len + 1);
    batch.tokens.insert(batch.tokens.end(), window.begin(), window.end() - 1);
    batch.labels.insert(batch.labels.end(), window.begin() + 1, window.end());
    if (!begins_) continue;
    std::vector<std::int64_t>& cuts = batch.cu_seqlens.emplace_back(1, 0);
    for (const std::int64_t begin : begins_(first + 1, options_.seq_len)) {
      const std::int64_t row = begin - first;
      batch.labels[idx(sequence * options_.seq_len + row - 1)] = kIgnoredLabel;
      if (row < options_.seq_len) cuts.push_back(row);
    }
    cuts.push_back(options_.seq_len);
  }
  return batch;
}

TokenBatch TokenWindows::training_batch(std::int64_t step) const {
  return batch([&](std::int64_t sequence) {
    const std::int64_t drawn = (step - 1) * options_.global_batch + sequence, epoch = drawn / training_;
    // An odd factor: epochs of one seed have different seeds, and are not those of the next seed.
    const std::uint64_t seed = options_.seed + 0x9e3779b97f4a7c15 * static_cast<std::uint64_t>(epoch);
    return Permutation(training_, seed)(drawn % training_);
  });
}

TokenBatch TokenWindows::evaluation_batch(std::int64_t batch_index) const {
  return batch([&](std::int64_t sequence) {
    return training_ + (batch_index * options_.global_batch + sequence) % evaluation_windows();
  });
}

}  // namespace cp
