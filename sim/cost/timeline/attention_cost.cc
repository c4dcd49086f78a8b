#include "sim/cost/timeline/attention_cost.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "shared/base/text.h"
#include "shared/base/units.h"
#include "sim/cost/cluster/attention_kernels.h"
#include "sim/cost/timeline/widths.h"

namespace cp::sim {
namespace {

// Keys are split only if there are at least this many for each query. Chosen; with
// fewer keys there is little to split.
constexpr double kKeysOfDecoding = 4;

// If fewer rows of a table were left out of a rate's fit, their errors say little about other shapes. Then
// the width is at least that of a curve from another machine (widths::kKernelElsewhere). Chosen.
constexpr int kManyRows = 50;
// No width is larger. Chosen: a width of 1 or more would say nothing about the time.
constexpr double kWidest = 0.9;

std::int64_t apart(int a, std::int64_t b) { return std::abs(a - b); }

double startup_free_us(const AttentionRate& rate, double pairs, double flops_per_pair, double speed) {
  return least_attention_us(rate, pairs, 0, 0, flops_per_pair, speed);
}

}  // namespace

AttentionCost::AttentionCost(const Cluster& cluster, const SoftwareProfile& software)
    : cluster_(cluster),
      bits_(software.attention_precision == LinearPrecision::fp8 && has_attention_8(cluster) ? 8 : 16),
      unknown_precision_(software.attention_precision == LinearPrecision::fp8 && bits_ == 16),
      cache_bits_(software.fp8_cache ? 8 : 16),
      kernel_(chosen_kernel(cluster, software.attention_kernel, bits_)),
      launch_us_(cluster.gpu.kernel_launch_us),
      forward_(pass_of(false)),
      backward_(pass_of(true)) {}

AttentionCost::Pass AttentionCost::pass_of(bool backward) const {
  const auto of_kernel = [&](bool any, bool of_backward) {
    Pass pass;
    for (const AttentionCurve& curve : cluster_.attention) {
      if (bits_ == 16 && curve.backward == of_backward && (any || curve.kernel == kernel_))
        pass.curves.push_back(&curve);
    }
    for (const AttentionRate& rate : cluster_.rates.attention) {
      const std::string& kernel = pass.rates.empty() ? rate.kernel : pass.rates.front()->kernel;
      if (rate.bits == bits_ && rate.backward == of_backward && rate.kernel == (any ? kernel : kernel_))
        pass.rates.push_back(&rate);
    }
    std::sort(pass.rates.begin(), pass.rates.end(),
              [](const auto* a, const auto* b) { return a->head_dim < b->head_dim; });
    pass.speed = cluster_.gpu.sustained_clock;
    if (cluster_.rates.tflops_16 > 0) pass.speed *= cluster_.gpu.tflops_16 / cluster_.rates.tflops_16;
    return pass;
  };
  const auto empty = [](const Pass& pass) { return pass.rates.empty() && pass.curves.empty(); };
  Pass pass = of_kernel(false, backward);
  if (empty(pass) && backward) {
    pass = of_kernel(false, false);
    if (pass.rates.empty()) pass = {};
    pass.of_forward = true;
    pass.curves.clear();
    pass.speed *= kBackwardShare;
  }
  return empty(pass) ? of_kernel(true, backward) : pass;
}

// A curve of just this head size was measured on what it stands for; else rates, which know several sizes.
bool AttentionCost::by_curve(const Pass& pass, std::int64_t head_dim) const {
  if (pass.rates.empty()) return true;
  return std::any_of(pass.curves.begin(), pass.curves.end(),
                     [&](const auto* curve) { return curve->head_dim == head_dim; });
}

const AttentionCurve& AttentionCost::nearest_curve(const Pass& pass, std::int64_t head_dim, bool causal) {
  const auto distance = [&](const AttentionCurve* curve) {
    return apart(curve->head_dim, head_dim) * 2 + (curve->causal == causal ? 0 : 1);
  };
  return **std::min_element(pass.curves.begin(), pass.curves.end(),
                            [&](const auto* a, const auto* b) { return distance(a) < distance(b); });
}

// A kernel with both kinds of slices does one after the other, each as fast as a kernel of all these pairs.
double AttentionCost::curve_ns(const Pass& pass, const KernelWork& work, std::int64_t head_dim) const {
  const double pairs = work.full_pairs + work.diagonal_pairs, peak = cluster_.gpu.tflops_16;
  double ns = 0;
  for (const bool causal : {false, true}) {
    const double share = causal ? work.diagonal_pairs : work.full_pairs;
    if (share == 0) continue;
    double tflops = kAttentionShare * peak;
    if (!pass.curves.empty()) {
      const Curve& curve = nearest_curve(pass, head_dim, causal).tflops;
      tflops = std::min(curve.at(work.rows <= kFewRows ? curve.points().back().x : pairs), peak);
    }
    ns += share / pairs * work.flops / tflops * 1e-3;
  }
  return ns;
}

template <class Us>
double AttentionCost::of_size(const Pass& pass, std::int64_t head_dim, double flops_per_pair, bool least,
                              Us&& us) const {
  // Of a pair of the rate's own size.
  const auto own_us = [&](const AttentionRate& rate) {
    return us(rate, flops_per_pair * rate.head_dim / static_cast<double>(head_dim));
  };
  const auto right = std::find_if(pass.rates.begin(), pass.rates.end(),
                                  [&](const auto* rate) { return rate->head_dim >= head_dim; });
  if (right != pass.rates.end() && (*right)->head_dim == head_dim) return own_us(**right);
  const bool below = right == pass.rates.begin(), above = right == pass.rates.end();
  const AttentionRate& nearest = below ? **right : **(right - 1);
  const double size_us = own_us(nearest), as_fast_us = us(nearest, flops_per_pair);
  if (pass.rates.size() == 1) return as_fast_us;
  const AttentionRate& other = below ? **(right + 1) : above ? **(right - 2) : **right;
  // A line through two lower bounds is none where it goes on beyond them.
  if (least && (below || above)) return std::min(size_us, as_fast_us);
  const double share = static_cast<double>(head_dim - nearest.head_dim) / (other.head_dim - nearest.head_dim);
  const double us_on_line = size_us + (own_us(other) - size_us) * share;
  if (below) return std::clamp(us_on_line, as_fast_us, size_us);
  return above ? std::clamp(us_on_line, size_us, as_fast_us) : us_on_line;
}

const AttentionRate& AttentionCost::nearest_rate(const Pass& pass, std::int64_t head_dim) {
  return **std::min_element(pass.rates.begin(), pass.rates.end(), [&](const auto* a, const auto* b) {
    return apart(a->head_dim, head_dim) < apart(b->head_dim, head_dim);
  });
}

const DecodeRate* AttentionCost::decode_rate(std::int64_t head_dim) const {
  const DecodeRate* best = nullptr;
  for (const DecodeRate& rate : cluster_.rates.decode) {
    if (rate.kernel != kernel_) continue;
    const auto distance = [&](const DecodeRate& other) {
      return std::pair(other.cache_bits == cache_bits_ ? 0 : 1, apart(other.head_dim, head_dim));
    };
    if (best == nullptr || distance(rate) < distance(*best)) best = &rate;
  }
  return best;
}

const LatentRate* AttentionCost::latent_rate() const {
  const LatentRate* best = nullptr;
  for (const LatentRate& rate : cluster_.rates.latent) {
    if (rate.decode && (best == nullptr || rate.cache_bits == cache_bits_)) best = &rate;
  }
  return best;
}

double AttentionCost::ns(const KernelWork& work, std::int64_t head_dim, bool backward) const {
  const double pairs = work.full_pairs + work.diagonal_pairs;
  if (pairs == 0) return 0;
  const Pass& of = pass(backward);
  const LatentRate* latent = !backward && work.values_in_keys ? latent_rate() : nullptr;
  const bool one_query = work.rows == work.attention.group;
  if (latent != nullptr && one_query) {
    LatentRate rate = *latent;
    rate.qk_dim = static_cast<int>(head_dim);
    rate.v_dim = static_cast<int>(std::llround(work.flops / pairs / 2)) - rate.qk_dim;
    const double heads = work.attention.group, keys = pairs / work.attention.heads;
    const double us = latent_us(rate, {work.attention.heads / heads, heads, 1, keys}, cluster_.rates.sms,
                                cluster_.gpu.hbm_gbps, of.speed);
    return kNsPerUs * (us - std::min(launch_us_, rate.floor_us));
  }
  if (by_curve(of, head_dim)) return curve_ns(of, work, head_dim);
  const double flops_per_pair = work.flops / pairs;
  const AttentionCall& call = work.attention;
  const double queries = call.full.rows + call.causal.rows + call.window.rows,
               most_keys = std::max({call.full.most_keys, call.causal.most_keys, call.window.most_keys});
  const bool few = work.rows <= kFewRows && queries * kKeysOfDecoding <= most_keys;
  const DecodeRate* decode = !backward && few ? decode_rate(head_dim) : nullptr;
  if (decode != nullptr) {
    const double keys = most_keys + decode->startup_keys;
    const double memory_us = decode->passes(call.group) * keys * work.bytes_per_key /
                             (cluster_.gpu.hbm_gbps * 1e3 * decode->memory_share);
    const double flops_us =
        of_size(of, head_dim, flops_per_pair, false, [&](const AttentionRate& rate, double flops) {
          return startup_free_us(rate, pairs, flops, of.speed);
        });
    const double floor_us = decode->floor_us - std::min(launch_us_, decode->floor_us);
    return kNsPerUs * (floor_us + std::max(memory_us, flops_us));
  }
  const double us =
      of_size(of, head_dim, flops_per_pair, false, [&](const AttentionRate& rate, double flops) {
        return attention_us(rate, work.attention, flops, cluster_.rates.sms, of.speed) -
               std::min(launch_us_, rate.floor_us);
      });
  return kNsPerUs * us;
}

double AttentionCost::least_ns(const AttentionSum& sum, std::int64_t head_dim, bool backward) const {
  if (sum.pairs == 0) return 0;
  const Pass& of = pass(backward);
  const LatentRate* latent = !backward && sum.values_in_keys ? latent_rate() : nullptr;
  if (latent != nullptr) return kNsPerUs * sum.pairs * sum.flops_per_pair / (latent->tflops * of.speed * 1e6);
  if (by_curve(of, head_dim)) {
    const double peak = cluster_.gpu.tflops_16;
    double tflops = of.curves.empty() ? kAttentionShare * peak : 0;
    for (const bool causal : {false, true}) {
      if (of.curves.empty()) break;
      const Curve& curve = nearest_curve(of, head_dim, causal).tflops;
      const double most = sum.few_rows ? std::numeric_limits<double>::infinity() : sum.pairs_at_once;
      tflops = std::max(tflops, curve.at(std::min(most, curve.points().back().x)));
      for (const CurvePoint& point : curve.points()) {
        if (point.x <= most) tflops = std::max(tflops, point.y);
      }
    }
    return sum.pairs * sum.flops_per_pair / std::min(tflops, peak) * 1e-3;
  }
  const double us =
      of_size(of, head_dim, sum.flops_per_pair, true, [&](const AttentionRate& rate, double flops) {
        if (sum.few_rows) return startup_free_us(rate, sum.pairs, flops, of.speed);
        return least_attention_us(rate, sum.pairs, sum.rows, sum.most_keys, flops, of.speed);
      });
  return kNsPerUs * us;
}

bool AttentionCost::of_second_hand(const Provenance& rate) const {
  return is_second_hand(rate.origin) || is_second_hand(cluster_.source_of("rates"));
}

double AttentionCost::decode_width(std::int64_t head_dim) const {
  const DecodeRate* rate = by_curve(forward_, head_dim) ? nullptr : decode_rate(head_dim);
  if (rate == nullptr) return width(head_dim, false);
  double of = rate->left_out.p90 > 0 ? widths::eight_in_ten(rate->left_out.median, rate->left_out.p90)
                                     : widths::kUnmeasured;
  if (rate->head_dim != head_dim) of = widths::both(of, widths::kBetweenSizes);
  return std::min(widths::by_hand(of, of_second_hand(rate->provenance)), kWidest);
}

double AttentionCost::absorbed_width(std::int64_t head_dim) const {
  const LatentRate* rate = latent_rate();
  if (rate == nullptr) return decode_width(head_dim);
  const double of = rate->left_out.p90 > 0 ? widths::eight_in_ten(rate->left_out.median, rate->left_out.p90)
                                           : widths::kUnmeasured;
  const double sizes = rate->qk_dim == head_dim ? of : widths::both(of, widths::kBetweenSizes);
  return std::min(widths::by_hand(sizes, of_second_hand(rate->provenance)), kWidest);
}

double AttentionCost::width(std::int64_t head_dim, bool backward) const {
  const Pass& of = pass(backward);
  if (unknown_precision_ || (of.rates.empty() && of.curves.empty())) return widths::kUnmeasured;
  if (by_curve(of, head_dim)) {
    const AttentionCurve& curve = nearest_curve(of, head_dim, true);
    const Source* source =
        cluster_.source_of(str("attention[", &curve - cluster_.attention.data(), "].tflops"));
    const double own = widths::by_hand(widths::kKernelElsewhere, is_second_hand(source));
    return curve.head_dim == head_dim ? own : std::min(widths::both(own, widths::kUnmeasured), kWidest);
  }
  const AttentionRate& rate = nearest_rate(of, head_dim);
  double width = rate.left_out.p90 > 0 ? widths::eight_in_ten(rate.left_out.median, rate.left_out.p90)
                                       : widths::kUnmeasured;
  if (rate.left_out.rows < kManyRows) width = std::max(width, widths::kKernelElsewhere);
  const auto [least, most] = std::pair(of.rates.front()->head_dim, of.rates.back()->head_dim);
  if (head_dim > least && head_dim < most && rate.head_dim != head_dim)
    width = widths::both(width, widths::kBetweenSizes);
  if (head_dim < least || head_dim > most) {
    const double doublings = std::abs(std::log2(static_cast<double>(head_dim) / rate.head_dim));
    width = widths::both(width, widths::kBeyondSizes * doublings);
  }
  return std::min(widths::by_hand(width, of.of_forward || of_second_hand(rate.provenance)), kWidest);
}

}  // namespace cp::sim
