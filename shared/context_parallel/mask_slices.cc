#include "shared/context_parallel/mask_slices.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/context_parallel/mask_documents.h"
#include "shared/placement/runs.h"

namespace cp {
namespace {

// Far beyond every position, and far from overflowing when positions are added to it.
constexpr std::int64_t kFar = std::int64_t{1} << 60;

// Inside one document: the query at position p sees p - lower < j <= p + upper.
struct Band {
  std::int64_t lower = kFar, upper = kFar;
};
Band band_of(const AttentionProblem& problem) {
  Band band;
  if (problem.window) band = {*problem.window, *problem.window - 1};
  if (problem.causal) band.upper = 0;
  return band;
}

// A periodic part of an index set, and the local position at which it begins.
struct Stretch {
  Run run;
  std::int64_t local = 0;
};

// Calls f(stretch) for the parts of the set in [begin, end), in local order; stops when f returns true.
template <class F>
bool for_each_stretch(const IndexSet& set, std::int64_t begin, std::int64_t end, const F& f) {
  std::int64_t before = 0;
  for (const Run& run : set) {
    at_work();
    bool stopped = false;
    clip_run(run, begin, end, [&](const Run& piece) {
      stopped = stopped || f(Stretch{piece, before + count_below(run, piece.begin)});
    });
    if (stopped) return true;
    before += run.size();
  }
  return false;
}

// The same for each stretch of consecutive indices.
template <class F>
bool for_each_block(const Stretch& stretch, const F& f) {
  if (is_contiguous(stretch.run)) {
    return f(Stretch{{stretch.run.begin, stretch.run.size(), stretch.run.size(), 1}, stretch.local});
  }
  for (std::int64_t i = 0; i < stretch.run.count; ++i) {
    const Run block{stretch.run.begin + i * stretch.run.stride, stretch.run.run, stretch.run.run, 1};
    if (f(Stretch{block, stretch.local + i * stretch.run.run})) return true;
  }
  return false;
}

// Calls emit(slice), which stops everything by returning true, for the allowed pairs.
template <class Emit>
class SliceFinder {
 public:
  SliceFinder(const AttentionProblem& problem, const IndexSet& q_rows, const IndexSet& k_rows,
              const Emit& emit)
      : problem_(problem), band_(band_of(problem)), q_rows_(q_rows), k_rows_(k_rows), emit_(emit) {}

  bool find() const {
    std::int64_t first = problem_.q_len, last = 0;
    for (const Run& run : q_rows_) {
      first = std::min(first, run.begin);
      last = std::max(last, end_of(run));
    }
    return first < last &&
           detail::for_each_mask_document(problem_, first, last, [&](const detail::MaskDocument& document) {
             return for_each_stretch(q_rows_, document.queries.begin, document.queries.end,
                                     [&](const Stretch& q) { return queries_of(document, q); });
           });
  }

 private:
  bool queries_of(const detail::MaskDocument& document, const Stretch& q) const {
    if (is_lattice(q) && all_keys_lie_like(q, document)) {
      return for_each_stretch(k_rows_, document.keys.begin, document.keys.end,
                              [&](const Stretch& k) { return lattices(q, k); });
    }
    return for_each_block(q, [&](const Stretch& block) {
      return for_each_stretch(k_rows_, document.keys.begin, document.keys.end,
                              [&](const Stretch& k) { return consecutive(block, k); });
    });
  }

  static bool is_lattice(const Stretch& q) { return q.run.run == 1 && q.run.count > 1; }
  bool all_keys_lie_like(const Stretch& q, const detail::MaskDocument& document) const {
    return !for_each_stretch(k_rows_, document.keys.begin, document.keys.end, [&](const Stretch& k) {
      return k.run.run != 1 || (k.run.count > 1 && k.run.stride != q.run.stride);
    });
  }

  // Row i of the queries and row j of the keys are `stride` times i and j further on.
  bool lattices(const Stretch& q, const Stretch& k) const {
    const std::int64_t stride = q.run.stride;
    const std::int64_t distance = q.run.begin + problem_.offset() - k.run.begin;
    const std::int64_t diagonal = floor_div(distance + band_.upper, stride);
    return slice({q.local, q.run.count, k.local, k.run.count, MaskSlice::Kind::full, diagonal,
                  diagonal - floor_div(distance - band_.lower, stride)});
  }

  // Consecutive queries against a periodic stretch of keys.
  bool consecutive(const Stretch& q, const Stretch& k) const {
    const std::int64_t first = q.run.begin + problem_.offset(), last = first + q.run.run - 1;
    if (is_contiguous(k.run)) return blocks(q, k);
    const std::int64_t begin = first - band_.lower + 1, end = last + band_.upper + 1;  // seen by any
    const std::int64_t full_begin = std::max(begin, last - band_.lower + 1);           // seen by all
    const std::int64_t full_end = std::min(end, first + band_.upper + 1);
    if (full_begin >= full_end) return edge(q, k, begin, end);
    const std::int64_t before = count_below(k.run, full_begin),
                       inside = count_below(k.run, full_end) - before;
    return edge(q, k, begin, full_begin) ||
           (inside > 0 &&
            emit_({q.local, q.run.run, k.local + before, inside, MaskSlice::Kind::full, 0, 0})) ||
           edge(q, k, full_end, end);
  }

  // The keys of [begin, end), which some of the queries see and others may not.
  bool edge(const Stretch& q, const Stretch& k, std::int64_t begin, std::int64_t end) const {
    return for_each_stretch({k.run}, begin, end, [&](Stretch piece) {
      piece.local += k.local;
      return for_each_block(piece, [&](const Stretch& block) { return blocks(q, block); });
    });
  }

  bool blocks(const Stretch& q, const Stretch& k) const {
    const std::int64_t diagonal = q.run.begin + problem_.offset() + band_.upper - k.run.begin;
    return slice({q.local, q.run.size(), k.local, k.run.size(), MaskSlice::Kind::full, diagonal,
                  band_.lower + band_.upper});
  }

  // The pairs i + diagonal - window < j <= i + diagonal of the slice's rectangle, cut down to what they
  // touch.
  bool slice(MaskSlice s) const {
    const std::int64_t q_first = std::max<std::int64_t>(0, -s.diagonal);
    const std::int64_t q_end = std::min(s.q_len, s.k_len - 1 - s.diagonal + s.window);
    if (q_first >= q_end || s.window < 1) return false;  // a stride may be wider than the window
    const std::int64_t k_first = std::max<std::int64_t>(0, q_first + s.diagonal - s.window + 1);
    const std::int64_t k_end = std::min(s.k_len, q_end - 1 + s.diagonal + 1);
    s.q_begin += q_first, s.q_len = q_end - q_first;
    s.k_begin += k_first, s.k_len = k_end - k_first;
    s.diagonal += q_first - k_first;
    const bool upper_cuts = s.k_len - 1 > s.diagonal, lower_cuts = s.q_len - 1 + s.diagonal - s.window >= 0;
    s.kind = lower_cuts   ? MaskSlice::Kind::window
             : upper_cuts ? MaskSlice::Kind::causal
                          : MaskSlice::Kind::full;
    if (!lower_cuts) s.window = 0;
    if (!lower_cuts && !upper_cuts) s.diagonal = 0;
    return emit_(s);
  }

  const AttentionProblem& problem_;
  const Band band_;
  const IndexSet& q_rows_;
  const IndexSet& k_rows_;
  const Emit& emit_;
};

bool continues(const MaskSlice& a, const MaskSlice& b) {
  return a.kind == MaskSlice::Kind::full && b.kind == MaskSlice::Kind::full && a.q_begin == b.q_begin &&
         a.q_len == b.q_len && a.k_begin + a.k_len == b.k_begin;
}

}  // namespace

std::vector<MaskSlice> mask_slices(const AttentionProblem& problem, const IndexSet& q_rows,
                                   const IndexSet& k_rows) {
  CP_INVARIANT(problem.shares_mask(), "one mask of ", to_string(problem));
  std::vector<MaskSlice> slices;
  const auto emit = [&](const MaskSlice& slice) {
    if (!slices.empty() && continues(slices.back(), slice)) {
      slices.back().k_len += slice.k_len;
    } else {
      slices.push_back(slice);
    }
    return false;
  };
  SliceFinder(problem, q_rows, k_rows, emit).find();
  return slices;
}

bool any_allowed(const AttentionProblem& problem, const IndexSet& q_rows, const IndexSet& k_rows) {
  if (!problem.shares_mask()) {
    const std::vector<MaskGroup> groups = mask_groups(problem);
    return std::any_of(groups.begin(), groups.end(),
                       [&](const MaskGroup& group) { return any_allowed(group.problem, q_rows, k_rows); });
  }
  const auto stop = [](const MaskSlice&) { return true; };
  return SliceFinder(problem, q_rows, k_rows, stop).find();
}

namespace {

// The keys that the queries may see, as intervals that may overlap.
void add_needed(const AttentionProblem& problem, const IndexSet& q_rows, std::vector<KeyInterval>& needed) {
  const Band band = band_of(problem);
  const auto add = [&](const detail::MaskDocument& document, std::int64_t first_query,
                       std::int64_t last_query) {
    const std::int64_t first = first_query + problem.offset(), last = last_query + problem.offset();
    const KeyInterval keys{std::max(document.keys.begin, first - band.lower + 1),
                           std::min(document.keys.end, last + band.upper + 1)};
    if (keys.begin < keys.end) needed.push_back(keys);
    return false;
  };
  for (const Run& run : q_rows) {
    detail::for_each_mask_document(
        problem, run.begin, end_of(run), [&](const detail::MaskDocument& document) {
          return for_each_stretch({run}, document.queries.begin, document.queries.end, [&](const Stretch& q) {
            // Neighbouring queries see neighbouring keys unless they stand further apart than the band is
            // wide.
            if (q.run.stride - q.run.run < band.lower + band.upper) {
              return add(document, q.run.begin, end_of(q.run) - 1);
            }
            return for_each_block(q, [&](const Stretch& block) {
              return add(document, block.run.begin, end_of(block.run) - 1);
            });
          });
        });
  }
}

}  // namespace

IndexSet needed_keys(const AttentionProblem& problem, const IndexSet& q_rows) {
  std::vector<KeyInterval> needed;
  for (const MaskGroup& group : mask_groups(problem)) add_needed(group.problem, q_rows, needed);
  std::sort(needed.begin(), needed.end(),
            [](const KeyInterval& a, const KeyInterval& b) { return a.begin < b.begin; });
  RunBuilder keys;
  std::int64_t end = 0;
  for (const KeyInterval& interval : needed) {
    const std::int64_t begin = std::max(interval.begin, end);
    if (begin >= interval.end) continue;
    keys.append({begin, interval.end - begin, interval.end - begin, 1});
    end = interval.end;
  }
  return keys.take();
}

std::int64_t allowed_cells(const AttentionProblem& problem, std::int64_t begin, std::int64_t end) {
  std::int64_t cells = 0;
  if (!problem.shares_mask()) {
    for (const MaskGroup& group : mask_groups(problem))
      cells += group.problem.batch * allowed_cells(group.problem, begin, end);
    return cells;
  }
  for (std::int64_t query = begin; query < end; ++query) {
    const KeyInterval keys = allowed_keys(problem, query);
    cells += keys.end - keys.begin;
  }
  return cells;
}

}  // namespace cp
