// Both ends of a model: the look-up of tokens, and the cross entropy of logits over a split vocabulary.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "shared/kernels/row_kernels.h"
#include "shared/kernels/row_views.h"

namespace cp {
namespace {

// The row of the rank's table or the column of its logits; -1: another rank has it.
std::int64_t own_index(const VocabularyRule& rule, std::int32_t token) {
  const std::int64_t index = token - rule.first;
  return index >= 0 && index < rule.count ? index : -1;
}

// The logits of the rank's tokens, scaled and capped.
void load_logits(const VocabularyRule& rule, const RowView& logits, std::int64_t row, float* values) {
  logits.load(row, values, 0, rule.count);
  if (const auto scale = static_cast<float>(rule.logit_scale); scale != 1) {
    for (std::int64_t i = 0; i < rule.count; ++i) values[i] *= scale;
  }
  if (rule.softcap == 0) return;
  const auto cap = static_cast<float>(rule.softcap);
  for (std::int64_t i = 0; i < rule.count; ++i) values[i] = cap * std::tanh(values[i] / cap);
}

}  // namespace

void embed(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<VocabularyRule>(kernel.rule);
  const std::vector<std::int32_t> tokens = load_integers(kernel.reads[0], memory, iteration);
  const RowView table(kernel.reads[1], memory, iteration), x(kernel.writes[0], memory, iteration);
  std::vector<float> values(idx(x.columns()));
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    const std::int64_t index = own_index(rule, tokens[idx(row)]);
    if (index < 0) {
      std::fill(values.begin(), values.end(), 0.0F);
    } else {
      table.load(index, values.data());
      for (float& value : values) value *= static_cast<float>(rule.scale);
    }
    x.store(row, values.data());
  }
}

// Rows of equal tokens are added up first, so that each row of the gradient is rounded once.
void embed_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<VocabularyRule>(kernel.rule);
  const std::vector<std::int32_t> tokens = load_integers(kernel.reads[0], memory, iteration);
  const RowView dx(kernel.reads[1], memory, iteration), table(kernel.updates[0], memory, iteration);
  std::vector<std::int64_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](std::int64_t a, std::int64_t b) { return tokens[idx(a)] < tokens[idx(b)]; });
  std::vector<float> values(idx(dx.columns())), sum(values.size());
  for (std::size_t i = 0; i < rows.size();) {
    const std::int32_t token = tokens[idx(rows[i])];
    const std::int64_t index = own_index(rule, token);
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (; i < rows.size() && tokens[idx(rows[i])] == token; ++i) {
      if (index < 0) continue;
      dx.load(rows[i], values.data());
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += static_cast<float>(rule.scale) * values[c];
    }
    if (index >= 0) table.store(index, sum.data(), /*adds=*/true);
  }
}

void cross_entropy(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<VocabularyRule>(kernel.rule);
  const RowView logits(kernel.reads[0], memory, iteration);
  const bool finds_maxima = kernel.reads.size()<3, adds_up = kernel.reads.size()> 1;
  const View &of_maxima = finds_maxima ? kernel.writes[0] : kernel.reads[1], &of_sums = kernel.writes.back();
  float* const maxima = statistic(of_maxima, memory, iteration);
  float* const sums = adds_up ? statistic(of_sums, memory, iteration) : nullptr;
  std::vector<std::int32_t> labels;
  if (adds_up) labels = load_integers(kernel.reads.back(), memory, iteration);
  std::vector<float> values(idx(rule.count));
  for (std::int64_t row = 0; row < logits.rows(); ++row) {
    load_logits(rule, logits, row, values.data());
    float& most = at(maxima, of_maxima, row);
    if (finds_maxima) {
      most = -std::numeric_limits<float>::infinity();
      for (const float value : values) most = std::max(most, value);
    }
    if (!adds_up) continue;
    double sum = 0;
    for (const float value : values) sum += std::exp(value - most);
    const std::int64_t label = own_index(rule, labels[idx(row)]);
    at(sums, of_sums, row, 0) = static_cast<float>(sum);
    at(sums, of_sums, row, 1) = label < 0 ? 0 : values[idx(label)];
  }
}

void cross_entropy_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<VocabularyRule>(kernel.rule);
  const RowView logits(kernel.reads[0], memory, iteration), d_logits(kernel.writes[0], memory, iteration);
  float* const maxima = statistic(kernel.reads[1], memory, iteration);
  float* const sums = statistic(kernel.reads[2], memory, iteration);
  float* const losses = statistic(kernel.writes[1], memory, iteration);
  const std::vector<std::int32_t> labels = load_integers(kernel.reads[3], memory, iteration);
  const float weight = *statistic(kernel.reads[4], memory, iteration) * static_cast<float>(rule.logit_scale);
  std::vector<float> values(idx(logits.columns()));
  for (std::int64_t row = 0; row < logits.rows(); ++row) {
    float& loss = at(losses, kernel.writes[1], row);
    if (labels[idx(row)] == rule.ignored) {
      loss = 0;
      std::fill(values.begin(), values.end(), 0.0F);
      d_logits.store(row, values.data());
      continue;
    }
    load_logits(rule, logits, row, values.data());
    const float most = at(maxima, kernel.reads[1], row), sum = at(sums, kernel.reads[2], row, 0);
    loss = std::log(sum) + most - at(sums, kernel.reads[2], row, 1);
    const std::int64_t label = own_index(rule, labels[idx(row)]);
    for (std::int64_t i = 0; i < rule.count; ++i) {
      float& value = values[idx(i)];
      const float share = value / static_cast<float>(rule.softcap == 0 ? 1 : rule.softcap);
      const float slope = rule.softcap == 0 ? 1 : 1 - share * share;
      value = weight * slope * (std::exp(value - most) / sum - (i == label ? 1.0F : 0.0F));
    }
    std::fill(values.begin() + rule.count, values.end(), 0.0F);
    d_logits.store(row, values.data());
  }
}

}  // namespace cp
