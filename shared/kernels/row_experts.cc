// The router of a mixture of experts, and the ways of rows to experts and back.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "shared/base/index.h"
#include "shared/kernels/expert_slots.h"
#include "shared/kernels/row_kernels.h"
#include "shared/kernels/row_views.h"

namespace cp {
namespace {

// ---- slots ----

void fill_with_zeros(const RowView& rows) {
  const std::vector<float> zeros(idx(rows.columns()), 0.0F);
  for (std::int64_t row = 0; row < rows.rows(); ++row) rows.store(row, zeros.data());
}

// Moves the rows between what arrived and the regions of experts.
void sort_rows(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration, bool to_experts) {
  const RowView in(kernel.reads[0], memory, iteration), out(kernel.writes[0], memory, iteration);
  fill_with_zeros(out);
  std::vector<float> values(idx(in.columns()));
  ExpertSlots(std::get<SlotsRule>(kernel.rule), in.rows())
      .for_arrived([&](std::int64_t arrived, std::int64_t sorted) {
        in.load(to_experts ? arrived : sorted, values.data());
        out.store(to_experts ? sorted : arrived, values.data());
      });
}

// ---- router ----

// The scores of a row's logits.
void make_scores(const RouterRule& rule, std::vector<float>& logits) {
  if (rule.sigmoid) {
    for (float& value : logits) value = 1 / (1 + std::exp(-value));
    return;
  }
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float& value : logits) value = std::exp(value - most), sum += value;
  for (float& value : logits) value = static_cast<float>(value / sum);
}

// Indices 0 .. values.size() - 1 by descending value; of equal ones the first comes first.
std::vector<std::int32_t> by_value(const std::vector<float>& values) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return values[idx(a)] > values[idx(b)]; });
  return order;
}

// By scores that are corrected, if the router does so.
std::vector<std::int32_t> choose(const RouterRule& rule, const std::vector<float>& scores,
                                 std::size_t top_k) {
  std::vector<std::int32_t> order = by_value(scores);
  if (rule.top_groups < rule.groups) {
    const std::size_t each = scores.size() / idx(rule.groups);
    std::vector<float> values;
    for (std::size_t group = 0; group < idx(rule.groups); ++group) {
      std::vector<float> own(scores.begin() + static_cast<std::ptrdiff_t>(group * each),
                             scores.begin() + static_cast<std::ptrdiff_t>((group + 1) * each));
      std::sort(own.begin(), own.end(), std::greater<>());
      values.push_back(own[0] + (rule.sigmoid && each > 1 ? own[1] : 0));
    }
    const std::vector<std::int32_t> groups = by_value(values);
    const auto last = groups.begin() + rule.top_groups;
    std::erase_if(order, [&](std::int32_t expert) {
      return std::find(groups.begin(), last, static_cast<std::int32_t>(idx(expert) / each)) == last;
    });
  }
  order.resize(top_k);
  return order;
}

// What a row's chosen scores are divided by.
double divisor_of(const RouterRule& rule, const std::vector<float>& scores, const std::int32_t* chosen,
                  std::size_t top_k) {
  if (!rule.normalized) return 1;
  double sum = 0;
  for (std::size_t k = 0; k < top_k; ++k) sum += scores[idx(chosen[k])];
  return sum;
}

}  // namespace

void route(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<RouterRule>(kernel.rule);
  const RowView logits(kernel.reads[0], memory, iteration);
  const View &of_weights = kernel.writes[0], &of_experts = kernel.writes[1];
  float* const weights = statistic(of_weights, memory, iteration);
  auto* const experts = reinterpret_cast<std::int32_t*>(memory.at(of_experts, iteration));
  const std::size_t top_k = idx(of_experts.shape[1]);
  std::vector<float> scores(idx(logits.columns())), correction(scores.size(), 0.0F), corrected(scores.size());
  if (kernel.reads.size() > 1) correction = load_vector(kernel.reads[1], memory, iteration);
  float* const loads = kernel.updates.empty() ? nullptr : statistic(kernel.updates[0], memory, iteration);
  for (std::int64_t row = 0; row < logits.rows(); ++row) {
    logits.load(row, scores.data());
    make_scores(rule, scores);
    std::transform(scores.begin(), scores.end(), correction.begin(), corrected.begin(), std::plus<>());
    const std::vector<std::int32_t> chosen = choose(rule, corrected, top_k);
    const double divisor = divisor_of(rule, scores, chosen.data(), top_k);
    for (std::size_t k = 0; k < top_k; ++k) {
      const auto place = static_cast<std::int64_t>(k);
      at(weights, of_weights, row, place) = static_cast<float>(rule.scale * scores[idx(chosen[k])] / divisor);
      experts[row * of_experts.strides[0] + place * of_experts.strides[1]] = chosen[k];
      if (loads != nullptr) ++at(loads, kernel.updates[0], chosen[k]);
    }
  }
}

void route_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<RouterRule>(kernel.rule);
  const RowView logits(kernel.reads[0], memory, iteration), d_logits(kernel.writes[0], memory, iteration);
  const std::vector<std::int32_t> chosen = load_integers(kernel.reads[1], memory, iteration);
  const View& by_slot = kernel.reads[2];
  float* const d_slots = statistic(by_slot, memory, iteration);
  const std::size_t top_k = idx(kernel.reads[1].shape[1]);
  std::vector<double> d_weights(chosen.size());
  ExpertSlots({logits.columns(), rule.ranks}, by_slot.shape[0])
      .for_choices(chosen, [&](std::size_t choice, std::int64_t slot) {
        d_weights[choice] = slot < 0 ? 0 : at(d_slots, by_slot, slot);
      });
  std::vector<float> scores(idx(logits.columns())), d(scores.size());
  for (std::int64_t row = 0; row < logits.rows(); ++row) {
    logits.load(row, scores.data());
    make_scores(rule, scores);
    const std::int32_t* own = chosen.data() + idx(row) * top_k;
    const double* d_own = d_weights.data() + idx(row) * top_k;
    const double divisor = divisor_of(rule, scores, own, top_k);
    // The gradient of the chosen scores; where they are normalized, what all of them lose by a larger sum.
    double shared = 0;
    if (rule.normalized) {
      for (std::size_t k = 0; k < top_k; ++k) shared += d_own[k] * scores[idx(own[k])] / divisor;
    }
    double along = 0;  // of a softmax: the sum of score times gradient
    std::fill(d.begin(), d.end(), 0.0F);
    for (std::size_t k = 0; k < top_k; ++k) {
      const double gradient = rule.scale * (d_own[k] - shared) / divisor;
      d[idx(own[k])] = static_cast<float>(gradient);
      along += gradient * scores[idx(own[k])];
    }
    for (std::size_t expert = 0; expert < d.size(); ++expert) {
      const double score = scores[expert];
      d[expert] =
          static_cast<float>(rule.sigmoid ? d[expert] * score * (1 - score) : (d[expert] - along) * score);
    }
    d_logits.store(row, d.data());
  }
}

void dispatch(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  if (kernel.reads.size() == 1) return sort_rows(kernel, memory, iteration, true);
  const RowView x(kernel.reads[0], memory, iteration), rows(kernel.writes[0], memory, iteration);
  const bool weighted = kernel.reads.size() == 3;
  fill_with_zeros(rows);
  if (weighted) fill_with_zeros(RowView(kernel.writes[1], memory, iteration));
  float* const weights = weighted ? statistic(kernel.reads[1], memory, iteration) : nullptr;
  float* const of_slots = weighted ? statistic(kernel.writes[1], memory, iteration) : nullptr;
  const std::int64_t top_k = kernel.reads.back().shape[1];
  std::vector<float> values(idx(x.columns()));
  ExpertSlots(std::get<SlotsRule>(kernel.rule), rows.rows())
      .for_choices(load_integers(kernel.reads.back(), memory, iteration),
                   [&](std::size_t choice, std::int64_t slot) {
                     if (slot < 0) return;
                     const auto token = static_cast<std::int64_t>(choice) / top_k,
                                place = static_cast<std::int64_t>(choice) % top_k;
                     x.load(token, values.data());
                     rows.store(slot, values.data());
                     if (weighted)
                       at(of_slots, kernel.writes[1], slot) = at(weights, kernel.reads[1], token, place);
                   });
}

// All of a token's choices are neighbours, so that its sum is rounded once.
void combine(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  if (kernel.reads.size() == 1) return sort_rows(kernel, memory, iteration, false);
  const RowView rows(kernel.reads[0], memory, iteration), y(kernel.writes[0], memory, iteration);
  const std::int64_t top_k = kernel.reads[1].shape[1];
  std::vector<float> values(idx(rows.columns())), sum(values.size(), 0.0F);
  ExpertSlots(std::get<SlotsRule>(kernel.rule), rows.rows())
      .for_choices(load_integers(kernel.reads[1], memory, iteration),
                   [&](std::size_t choice, std::int64_t slot) {
                     const auto number = static_cast<std::int64_t>(choice);
                     if (slot >= 0) {
                       rows.load(slot, values.data());
                       for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
                     }
                     if (number % top_k < top_k - 1) return;
                     y.store(number / top_k, sum.data());
                     std::fill(sum.begin(), sum.end(), 0.0F);
                   });
}

}  // namespace cp
