#include "shared/plan/overlap.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

namespace cp {
namespace {

// stride * z, where z may be any integer of [low, high].
struct Term {
  std::int64_t stride = 0, low = 0, high = 0;
};

// Whether two strided views share an element is a search over sums of strides, which could take long. Beyond
// these limits the answer is "they may overlap": this costs an edge that was not needed, but never misses
// one. All are chosen: the views that our builders make stay far below them, and a search that reaches one
// takes some microseconds.
constexpr std::size_t kMaxTerms = 16;      // dimensions of both views together
constexpr int kMaxSearchNodes = 256;       // partial sums that are tried
constexpr std::int64_t kMaxPeriod = 1024;  // of two views' advances together
constexpr std::int64_t kMaxPairs = 4096;   // of iterations compared one by one

// a's elements are offset_a + Σ stride*x, b's offset_b + Σ stride*y: they share one exactly when Σ stride*z
// can be offset_b - offset_a, with one term for each dimension of either view.
class SharedElement {
 public:
  SharedElement(const View& a, const View& b) {
    add_dims(a, 1);
    add_dims(b, -1);
    std::sort(terms_.begin(), terms_.begin() + static_cast<std::ptrdiff_t>(size_),
              [](const Term& x, const Term& y) { return x.stride < y.stride; });
    fold();
  }

  bool possible(std::int64_t delta) {
    if (too_many_) return true;
    nodes_left_ = kMaxSearchNodes;
    return reachable(size_, delta);
  }

 private:
  void add_dims(const View& view, std::int64_t sign) {
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
      const std::int64_t reach = view.shape[dim] - 1;
      if (reach == 0 || view.strides[dim] == 0) continue;
      if (size_ == kMaxTerms) {
        too_many_ = true;
        return;
      }
      terms_[size_++] = sign > 0 ? Term{view.strides[dim], 0, reach} : Term{view.strides[dim], -reach, 0};
    }
  }

  // A term whose stride is a multiple of a smaller one's, and whose steps leave no gap, only widens that one:
  // (4,8) elements with strides (8,1) are 32 with stride 1.
  void fold() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const Term& term = terms_[i];
      bool folded = false;
      for (std::size_t j = 0; j < kept && !folded; ++j) {
        Term& base = terms_[j];
        const std::int64_t factor = term.stride / base.stride;
        if (term.stride % base.stride != 0 || factor > base.high - base.low + 1) continue;
        base.low += factor * term.low;
        base.high += factor * term.high;
        folded = true;
      }
      if (!folded) terms_[kept++] = term;
    }
    size_ = kept;
    for (std::size_t i = 0; i < size_; ++i) {
      gcds_[i + 1] = std::gcd(gcds_[i], terms_[i].stride);
      lows_[i + 1] = lows_[i] + terms_[i].stride * terms_[i].low;
      highs_[i + 1] = highs_[i] + terms_[i].stride * terms_[i].high;
    }
  }

  // Whether the first `count` terms can sum to `rest`. The largest stride is tried first: when dimensions
  // nest, the reach of the others leaves it one or two candidates.
  bool reachable(std::size_t count, std::int64_t rest) {
    if (rest < lows_[count] || rest > highs_[count]) return false;
    if (count == 0) return true;
    if (rest % gcds_[count] != 0) return false;
    if (count == 1) return true;
    const Term& term = terms_[count - 1];
    const std::int64_t least = ceil_quotient(rest - highs_[count - 1], term.stride);
    const std::int64_t most = floor_quotient(rest - lows_[count - 1], term.stride);
    for (std::int64_t z = std::max(least, term.low); z <= std::min(most, term.high); ++z) {
      if (--nodes_left_ <= 0 || reachable(count - 1, rest - z * term.stride)) return true;
    }
    return false;
  }

  static std::int64_t floor_quotient(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
  static std::int64_t ceil_quotient(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

  std::array<Term, kMaxTerms> terms_{};
  std::array<std::int64_t, kMaxTerms + 1> gcds_{}, lows_{}, highs_{};  // of the first i terms
  std::size_t size_ = 0;
  bool too_many_ = false;
  int nodes_left_ = 0;
};

// Elements from the first to the last one of a view; 0 when it is empty.
std::int64_t span_of(const View& view) {
  std::int64_t span = 1;
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
    if (view.shape[dim] == 0) return 0;
    span += (view.shape[dim] - 1) * view.strides[dim];
  }
  return span;
}

bool share(const View& a, std::int64_t offset_a, const View& b, std::int64_t offset_b) {
  const std::int64_t span_a = span_of(a), span_b = span_of(b);
  if (span_a == 0 || span_b == 0 || offset_a >= offset_b + span_b || offset_b >= offset_a + span_a)
    return false;
  if (is_contiguous(a) && is_contiguous(b)) return true;
  return SharedElement(a, b).possible(offset_b - offset_a);
}

std::int64_t period_of(const Advance& advance) {
  return advance.stride == 0 || advance.period == 0 ? 1 : advance.period;
}
bool is_linear(const Advance& advance) { return advance.stride != 0 && advance.period == 0; }

// The iterations at which a view has different places: as many as returned, from 0.
std::int64_t distinct_places(const View& view, std::int64_t count) {
  return is_linear(view.advance) ? count : std::min(count, period_of(view.advance));
}

// Whether a at first + k*step and b at first + k*step - lag share an element for some k of [0, times); the
// distance between them changes by the same amount from each k to the next.
bool overlaps_in_progression(const View& a, const View& b, std::int64_t lag, std::int64_t first,
                             std::int64_t step, std::int64_t times) {
  const auto offset_a = [&](std::int64_t k) { return offset_at(a, first + k * step); };
  const auto offset_b = [&](std::int64_t k) { return offset_at(b, first + k * step - lag); };
  const std::int64_t distance = offset_b(0) - offset_a(0);
  const std::int64_t change = times > 1 ? offset_b(1) - offset_a(1) - distance : 0;
  if (change == 0) return share(a, offset_a(0), b, offset_b(0));
  // The extents meet while -span_b < distance + k*change < span_a: a range of k.
  const std::int64_t span_a = span_of(a), span_b = span_of(b);
  if (span_a == 0 || span_b == 0) return false;
  const std::int64_t sign = change > 0 ? 1 : -1, pace = sign * change;
  const std::int64_t low = sign > 0 ? -span_b : -span_a,
                     high = sign > 0 ? span_a : span_b;  // of sign * distance
  const std::int64_t start = sign * distance;
  const std::int64_t from = start > low ? 0 : (low - start) / pace + 1;
  const std::int64_t until = start >= high ? 0 : std::min(times, ceil_div(high - start, pace));
  if (from < until && until - from > kMaxPairs) return true;
  for (std::int64_t k = from; k < until; ++k) {
    if (share(a, offset_a(k), b, offset_b(k))) return true;
  }
  return false;
}

}  // namespace

Extent extent_at(const View& view, std::int64_t iteration) {
  const std::int64_t begin = offset_at(view, iteration);
  return {begin, begin + span_of(view)};
}

Extent extent(const View& view, std::int64_t count) {
  const Advance& advance = view.advance;
  std::int64_t first = 0, last = 0;  // multiples of the advance's stride
  if (advance.stride != 0 && advance.period == 0) {
    first = advance.phase;
    last = advance.phase + count - 1;
  } else if (advance.stride != 0) {
    first = advance.phase % advance.period;
    last = first + count - 1;
    if (last >= advance.period) first = 0, last = advance.period - 1;
  }
  const std::int64_t one = view.offset + first * advance.stride, other = view.offset + last * advance.stride;
  return {std::min(one, other), std::max(one, other) + span_of(view)};
}

bool overlaps_at_lag(const View& a, const View& b, std::int64_t lag, std::int64_t count) {
  if (a.buffer != b.buffer || lag >= count) return false;
  const bool same_distance = a.advance.stride == 0 && b.advance.stride == 0;
  if (same_distance || (lag == 0 && a.advance == b.advance))
    return share(a, offset_at(a, lag), b, offset_at(b, 0));
  const std::int64_t period = std::lcm(period_of(a.advance), period_of(b.advance));
  if (period > kMaxPeriod) return extent(a, count).meets(extent(b, count));
  const bool linear = is_linear(a.advance) || is_linear(b.advance);
  for (std::int64_t i = lag; i < count && i < lag + period; ++i) {
    const std::int64_t times = linear ? ceil_div(count - i, period) : 1;
    if (overlaps_in_progression(a, b, lag, i, period, times)) return true;
  }
  return false;
}

std::optional<std::int64_t> least_overlapping_lag(const View& a, const View& b, std::int64_t from,
                                                  std::int64_t count) {
  if (a.buffer != b.buffer || !extent(a, count).meets(extent(b, count))) return std::nullopt;
  const Advance &move_a = a.advance, &move_b = b.advance;
  // With one view at rest, a greater lag only compares fewer iterations.
  if (move_a.stride == 0 || move_b.stride == 0) {
    return overlaps_at_lag(a, b, from, count) ? std::optional(from) : std::nullopt;
  }
  const bool linear = is_linear(move_a) || is_linear(move_b);
  const bool parallel = is_linear(move_a) && is_linear(move_b) && move_a.stride == move_b.stride;
  for (std::int64_t lag = from; lag < count; ++lag) {
    if (overlaps_at_lag(a, b, lag, count)) return lag;
    if (lag >= kMaxLag) return kMaxLag;
    // Slots come back after one joint period.
    if (!linear && lag + 1 - from >= std::lcm(move_a.period, move_b.period)) return std::nullopt;
    // Views that advance alike are equally far apart in all iterations, and one stride farther with each lag.
    if (parallel) {
      const std::int64_t distance = offset_at(b, 0) - offset_at(a, lag);
      if (move_a.stride > 0 ? distance <= -span_of(b) : distance >= span_of(a)) return std::nullopt;
    }
  }
  return std::nullopt;
}

bool ever_overlaps(const View& a, std::int64_t count_a, const View& b, std::int64_t count_b) {
  if (a.buffer != b.buffer || !extent(a, count_a).meets(extent(b, count_b))) return false;
  const std::int64_t places_a = distinct_places(a, count_a), places_b = distinct_places(b, count_b);
  if (places_a > kMaxPairs / places_b) return true;
  for (std::int64_t i = 0; i < places_a; ++i) {
    for (std::int64_t j = 0; j < places_b; ++j) {
      if (share(a, offset_at(a, i), b, offset_at(b, j))) return true;
    }
  }
  return false;
}

}  // namespace cp
