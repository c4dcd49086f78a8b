// What two index sets share. Two periodic runs meet in a pattern that repeats with the lcm of their strides:
// each way in which a block of one can lie against a block of the other is one arithmetic progression of
// meetings.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "shared/base/types.h"
#include "shared/placement/index_set.h"
#include "shared/placement/runs.h"

namespace cp {
namespace {

__extension__ using Int128 = __int128;

// Up to this many pairs of runs are tried one by one; beyond, the runs of b are sorted once, so that each run
// of a finds those it can touch. Chosen, not measured: 8 x 8 runs are more than head-tail and striped splits
// make, even nested; packed documents and dealt blocks make more. The result is the same either way.
constexpr std::size_t kFewPairs = 64;

std::int64_t modulo(std::int64_t value, std::int64_t modulus) {
  const std::int64_t rest = value % modulus;
  return rest < 0 ? rest + modulus : rest;
}

// The inverse of `value` modulo `modulus`, which have no common factor (extended Euclid).
std::int64_t inverse(std::int64_t value, std::int64_t modulus) {
  std::int64_t rest = modulus, next_rest = modulo(value, modulus), factor = 0, next_factor = 1;
  while (next_rest != 0) {
    const std::int64_t quotient = rest / next_rest;
    rest = std::exchange(next_rest, rest - quotient * next_rest);
    factor = std::exchange(next_factor, factor - quotient * next_factor);
  }
  return modulo(factor, modulus);
}

// How many relative positions blocks of a and b can have when they touch: at most this many progressions are
// visited.
std::int64_t num_progressions(const Run& a, const Run& b, std::int64_t gcd) {
  return (a.run + b.run - 2) / gcd + 1;
}

// Calls f(shift, i, j, meetings) for each relative position: block j of b begins `shift` after block i of a,
// and so do blocks j + k * a.stride / gcd against i + k * b.stride / gcd, for all k < meetings.
template <class F>
void for_each_progression(const Run& a, const Run& b, std::int64_t gcd, const F& f) {
  const std::int64_t distance = b.begin - a.begin;
  const std::int64_t period = b.stride / gcd;  // of i
  const std::int64_t step = period == 1 ? 0 : inverse(a.stride / gcd, period);
  std::int64_t shift = 1 - b.run + modulo(distance - (1 - b.run), gcd);
  // shift = distance + j * b.stride - i * a.stride fixes i modulo the period.
  auto residue = static_cast<std::int64_t>(Int128{modulo((distance - shift) / gcd, period)} * step % period);
  for (; shift < a.run; shift += gcd) {
    const std::int64_t lowest = std::max<std::int64_t>(0, -floor_div(shift - distance, a.stride));
    const std::int64_t highest =
        std::min(a.count - 1, floor_div((b.count - 1) * b.stride + distance - shift, a.stride));
    const std::int64_t i = lowest + modulo(residue - lowest, period);
    if (i <= highest) {
      const std::int64_t j = (a.begin + i * a.stride + shift - b.begin) / b.stride;
      f(shift, i, j, (highest - i) / period + 1);
    }
    residue -= step;
    if (residue < 0) residue += period;
  }
}

std::int64_t shared_size_of_periodic(const Run& a, const Run& b) {
  if (a.count > b.count) return shared_size_of_periodic(b, a);
  std::int64_t total = 0;
  const std::int64_t gcd = std::gcd(a.stride, b.stride);
  if (a.count <= num_progressions(a, b, gcd)) {
    for (std::int64_t i = 0, begin = a.begin; i < a.count; ++i, begin += a.stride) {
      total += count_below(b, begin + a.run) - count_below(b, begin);
    }
  } else {
    for_each_progression(
        a, b, gcd, [&](std::int64_t shift, std::int64_t, std::int64_t, std::int64_t meetings) {
          total += (std::min(a.run, shift + b.run) - std::max<std::int64_t>(0, shift)) * meetings;
        });
  }
  return total;
}

std::int64_t shared_size(const Run& a, const Run& b) {
  const std::int64_t begin = std::max(a.begin, b.begin), end = std::min(end_of(a), end_of(b));
  if (end <= begin) return 0;
  const bool a_is_contiguous = is_contiguous(a), b_is_contiguous = is_contiguous(b);
  if (a_is_contiguous && b_is_contiguous) return end - begin;
  if (a_is_contiguous) return count_below(b, end) - count_below(b, begin);
  if (b_is_contiguous) return count_below(a, end) - count_below(a, begin);
  return shared_size_of_periodic(a, b);
}

// A run of one set, and the local position at which it begins.
struct PlacedRun {
  PlacedRun(const Run& original, std::int64_t position)
      : run(is_contiguous(original) ? Run{original.begin, original.size(), original.size(), 1} : original),
        local(position) {}
  Run run;
  std::int64_t local;
};

// The overlap that holds exactly the indices of `piece`, whose blocks advance regularly in both runs.
Overlap overlap_of(const Run& piece, const PlacedRun& a, const PlacedRun& b) {
  Overlap overlap{.run = piece.run,
                  .count = piece.count,
                  .global = piece.begin,
                  .stride_global = piece.run,
                  .in_a = a.local + count_below(a.run, piece.begin),
                  .stride_a = piece.run,
                  .in_b = b.local + count_below(b.run, piece.begin),
                  .stride_b = piece.run};
  if (piece.count > 1) {
    const std::int64_t second = piece.begin + piece.stride;
    overlap.stride_global = piece.stride;
    overlap.stride_a = a.local + count_below(a.run, second) - overlap.in_a;
    overlap.stride_b = b.local + count_below(b.run, second) - overlap.in_b;
  }
  return overlap;
}

template <class Emit>
void overlap_runs(const PlacedRun& a, const PlacedRun& b, const Emit& emit) {
  const Run& fewer = a.run.count <= b.run.count ? a.run : b.run;  // blocks
  const Run& other = a.run.count <= b.run.count ? b.run : a.run;
  const std::int64_t gcd = fewer.count == 1 ? 1 : std::gcd(a.run.stride, b.run.stride);
  if (fewer.count == 1 || fewer.count <= num_progressions(a.run, b.run, gcd)) {
    for (std::int64_t i = 0, begin = fewer.begin; i < fewer.count; ++i, begin += fewer.stride) {
      clip_run(other, begin, begin + fewer.run, [&](const Run& piece) { emit(overlap_of(piece, a, b)); });
    }
    return;
  }
  for_each_progression(
      a.run, b.run, gcd, [&](std::int64_t shift, std::int64_t i, std::int64_t, std::int64_t meetings) {
        const std::int64_t from = std::max<std::int64_t>(0, shift);
        const std::int64_t length = std::min(a.run.run, shift + b.run.run) - from;
        const std::int64_t stride = meetings == 1 ? length : b.run.stride / gcd * a.run.stride;
        emit(overlap_of({a.run.begin + i * a.run.stride + from, length, stride, meetings}, a, b));
      });
}

// Appends `next`, or lets the last overlap go on where `next` continues it in both sets alike.
void append_folded(std::vector<Overlap>& overlaps, const Overlap& next) {
  if (!overlaps.empty()) {
    Overlap& last = overlaps.back();
    if (last.count == 1 && next.count == 1 && next.global == last.global + last.run &&
        next.in_a == last.in_a + last.run && next.in_b == last.in_b + last.run) {
      last.run += next.run;
      last.stride_global = last.stride_a = last.stride_b = last.run;
      return;
    }
    const std::int64_t back = last.count - 1;
    const std::int64_t step = next.global - (last.global + back * last.stride_global);
    const std::int64_t step_a = next.in_a - (last.in_a + back * last.stride_a);
    const std::int64_t step_b = next.in_b - (last.in_b + back * last.stride_b);
    const auto advances_by_steps = [&](const Overlap& overlap) {
      return overlap.count == 1 ||
             (overlap.stride_global == step && overlap.stride_a == step_a && overlap.stride_b == step_b);
    };
    if (last.run == next.run && std::min({step, step_a, step_b}) >= next.run && advances_by_steps(last) &&
        advances_by_steps(next)) {
      last.stride_global = step;
      last.stride_a = step_a;
      last.stride_b = step_b;
      last.count += next.count;
      return;
    }
  }
  overlaps.push_back(next);
}

// Calls f(run of a, run of b), each as its position in its set, for each pair that can meet; the runs of a in
// local order.
template <class F>
void for_each_pair(const IndexSet& a, const IndexSet& b, const F& f) {
  if (a.size() * b.size() <= kFewPairs) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (std::size_t j = 0; j < b.size(); ++j) f(i, j);
    }
    return;
  }
  const RunFinder finder(b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    finder.for_each(a[i].begin, end_of(a[i]), [&](std::size_t j) { f(i, j); });
  }
}

std::vector<PlacedRun> placed(const IndexSet& set) {
  std::vector<PlacedRun> runs;
  runs.reserve(set.size());
  std::int64_t local = 0;
  for (const Run& run : set) {
    runs.emplace_back(run, local);
    local += run.size();
  }
  return runs;
}

}  // namespace

std::int64_t intersection_size(const IndexSet& a, const IndexSet& b) {
  if (a.size() == 1 && b.size() == 1) return shared_size(a.front(), b.front());
  std::int64_t total = 0;
  for_each_pair(a, b, [&](std::size_t i, std::size_t j) { total += shared_size(a[i], b[j]); });
  return total;
}

std::vector<Overlap> intersect(const IndexSet& a, const IndexSet& b) {
  std::vector<Overlap> found;
  const auto keep = [&](const Overlap& overlap) { found.push_back(overlap); };
  if (a.size() == 1 && b.size() == 1) {
    overlap_runs({a.front(), 0}, {b.front(), 0}, keep);
  } else {
    const std::vector<PlacedRun> runs_a = placed(a), runs_b = placed(b);
    for_each_pair(a, b, [&](std::size_t i, std::size_t j) { overlap_runs(runs_a[i], runs_b[j], keep); });
  }
  if (found.size() <= 1) return found;
  const auto earlier = [](const Overlap& x, const Overlap& y) { return x.in_a < y.in_a; };
  if (!std::is_sorted(found.begin(), found.end(), earlier)) std::sort(found.begin(), found.end(), earlier);
  std::vector<Overlap> overlaps;
  for (const Overlap& overlap : found) append_folded(overlaps, overlap);
  return overlaps;
}

}  // namespace cp
