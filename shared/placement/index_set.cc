#include "shared/placement/index_set.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/placement/runs.h"

namespace cp {
namespace {

// Chosen: a Run is 32 bytes, so the limit is 128 MiB for one set. Only patterns of three levels with millions
// of repetitions come near it.
constexpr std::int64_t kMaxRuns = std::int64_t{1} << 22;

void require_few_runs(std::int64_t runs, const Run& base, const Run& positions) {
  if (runs <= kMaxRuns) return;
  throw Infeasible(str("taking the positions ", to_string({positions}), " of the indices ", to_string({base}),
                       " makes a pattern of three levels with ", runs, " runs, more than the limit of ",
                       kMaxRuns, "; nested stripes stay one run when the inner block divides the outer one"));
}

// The positions [from, from + length) of one periodic run.
void append_stretch(const Run& base, std::int64_t from, std::int64_t length, RunBuilder& out) {
  const Run all_positions{0, base.run, base.run, base.count};
  clip_run(all_positions, from, from + length, [&](const Run& piece) {
    out.append({global_in_run(base, piece.begin), piece.run, base.stride, piece.count});
  });
}

// All positions lie inside one run of the base.
void append_composed(const Run& base, const Run& positions, RunBuilder& out) {
  if (is_contiguous(base)) {
    out.append({base.begin + positions.begin, positions.run, positions.stride, positions.count});
  } else if (is_contiguous(positions)) {
    append_stretch(base, positions.begin, positions.size(), out);
  } else if (positions.stride % base.run == 0 && positions.begin % base.run + positions.run <= base.run) {
    out.append({global_in_run(base, positions.begin), positions.run,
                positions.stride / base.run * base.stride, positions.count});
  } else if (positions.stride >= base.run) {
    require_few_runs(positions.count, base, positions);
    for (std::int64_t i = 0; i < positions.count; ++i) {
      append_stretch(base, positions.begin + i * positions.stride, positions.run, out);
    }
  } else {  // several blocks of positions fall into each block of the base
    const std::int64_t first = positions.begin / base.run, last = (end_of(positions) - 1) / base.run;
    require_few_runs(last - first + 1, base, positions);
    for (std::int64_t block = first; block <= last; ++block) {
      clip_run(positions, block * base.run, (block + 1) * base.run, [&](Run piece) {
        piece.begin += base.begin + block * (base.stride - base.run);
        out.append(piece);
      });
    }
  }
}

}  // namespace

IndexSet index_range(std::int64_t begin, std::int64_t end) {
  if (end <= begin) return {};
  return {{begin, end - begin, end - begin, 1}};
}

std::int64_t size(const IndexSet& set) {
  std::int64_t total = 0;
  for (const Run& run : set) total += run.size();
  return total;
}

IndexSet canonical(IndexSet set) {
  if (set.size() == 1) {
    Run& run = set.front();
    if (is_contiguous(run)) run = {run.begin, run.size(), run.size(), 1};
    return set;
  }
  RunBuilder out;
  for (const Run& run : set) out.append(run);
  return out.take();
}

bool same_indices(const IndexSet& a, const IndexSet& b) {
  if (a == b) return true;
  if (size(a) != size(b)) return false;
  return canonical(a) == canonical(b);
}

bool same_members(const IndexSet& a, const IndexSet& b) {
  const std::int64_t members = size(a);
  return a == b || (members == size(b) && intersection_size(a, b) == members);
}

std::int64_t to_global(const IndexSet& set, std::int64_t local) {
  std::int64_t left = local;
  for (const Run& run : set) {
    if (left >= 0 && left < run.size()) return global_in_run(run, left);
    left -= run.size();
  }
  invariant_failed("0 <= local < size(set)", __FILE__, __LINE__,
                   str("local ", local, " of ", to_string(set)));
}

std::optional<std::int64_t> to_local(const IndexSet& set, std::int64_t global) {
  std::int64_t before = 0;
  for (const Run& run : set) {
    const std::int64_t distance = global - run.begin;
    if (distance >= 0 && distance / run.stride < run.count && distance % run.stride < run.run) {
      return before + count_below(run, global);
    }
    before += run.size();
  }
  return std::nullopt;
}

IndexSet compose(const IndexSet& base, const IndexSet& positions) {
  RunBuilder out;
  if (base.size() == 1) {
    for (const Run& run : positions) append_composed(base.front(), run, out);
    return out.take();
  }
  std::vector<std::int64_t> starts;  // local position at which each run of the base begins
  starts.reserve(base.size() + 1);
  starts.push_back(0);
  for (const Run& run : base) starts.push_back(starts.back() + run.size());
  for (const Run& run : positions) {
    const auto after = std::upper_bound(starts.begin(), starts.end(), run.begin);
    const std::int64_t end = end_of(run);
    for (auto i = static_cast<std::size_t>(after - starts.begin() - 1); i < base.size() && starts[i] < end;
         ++i) {
      clip_run(run, starts[i], starts[i + 1], [&](Run piece) {
        piece.begin -= starts[i];
        append_composed(base[i], piece, out);
      });
    }
  }
  return out.take();
}

IndexSet clip(const IndexSet& set, std::int64_t begin, std::int64_t end) {
  RunBuilder out;
  for (const Run& run : set) {
    clip_run(run, begin, end, [&](const Run& piece) { out.append(piece); });
  }
  return out.take();
}

std::string to_string(const IndexSet& set) {
  if (set.empty()) return "empty";
  std::vector<std::string> runs;
  for (const Run& run : set) {
    runs.push_back(str("[", run.begin, "..", run.begin + run.run, ")"));
    if (run.count > 1) runs.back() += str("+", run.stride, "x", run.count);
  }
  return join(runs, " ");
}

}  // namespace cp
