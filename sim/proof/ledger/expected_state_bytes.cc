#include <set>

#include "sim/proof/ledger/recurrence_ledger.h"
#include "sim/proof/ledger/sequence_pieces.h"

namespace cp::sim {
namespace {

// The pieces in the order in which states go through them.
struct Way {
  std::vector<int> owner;
  std::vector<bool> joins_next, is_inside;

  Way(const SequencePieces& pieces, RecurrencePass pass) {
    const std::size_t n = pieces.all().size();
    for (std::size_t i = 0; i < n; ++i) {
      const bool forward = pass == RecurrencePass::forward;
      const std::size_t piece = forward ? i : n - 1 - i;
      owner.push_back(pieces.all()[piece].index);
      is_inside.push_back(pieces.is_inside(piece));
      joins_next.push_back(i + 1 < n && pieces.joins_next(forward ? piece : piece - 1));
    }
  }
  // Whether a state that leaves piece `from` still counts where piece `to` begins.
  bool reaches(std::size_t from, std::size_t to) const {
    if (!joins_next[from]) return false;
    for (std::size_t i = from + 1; i < to; ++i) {
      if (!is_inside[i]) return false;
    }
    return true;
  }
};

class Counter {
 public:
  Counter(const RecurrenceRequest& request, RecurrencePass pass)
      : problem_(request.problem), pieces_(request), way_(pieces_, pass), bytes_(request.ranks.size()) {}

  std::vector<StateBytes> scans(StateScan scan) {
    const std::size_t n = way_.owner.size();
    // The state behind the last row is cached where the first row is.
    if (problem_.cached_state) get(n - 1, way_.owner.front(), false);
    if (scan == StateScan::all_gather) {
      // Each rank gets the pair of each piece that reaches one of its own, once.
      for (int rank = 0; rank < static_cast<int>(bytes_.size()); ++rank) {
        std::set<std::size_t> wanted;
        for (std::size_t to = 0; to < n; ++to) {
          for (std::size_t from = 0; way_.owner[to] == rank && from < to; ++from) {
            if (way_.reaches(from, to)) wanted.insert(from);
          }
        }
        for (const std::size_t from : wanted) get(from, rank, way_.is_inside[from]);
      }
      return bytes_;
    }
    for (std::size_t i = 0; i + 1 < n; ++i) {
      if (way_.joins_next[i]) get(i, way_.owner[i + 1], false);
    }
    for (std::size_t distance = 1; scan == StateScan::recursive_doubling && distance < n; distance *= 2) {
      for (std::size_t to = distance; to < n; ++to) {
        // A pair ends with a piece from which something goes on.
        if (!way_.joins_next[to] || !way_.reaches(to - distance, to + 1)) continue;
        const std::size_t from = to - distance;
        get(from, way_.owner[to], from >= distance && way_.reaches(from - distance, from + 1));
      }
    }
    return bytes_;
  }

  // Rows that a rank lacks of its heads, and heads that it lacks of its rows.
  std::vector<StateBytes> heads(RecurrencePass pass) {
    const auto ranks = static_cast<std::int64_t>(bytes_.size());
    const std::int64_t wide = size_bytes(problem_.dtype);
    const std::int64_t q = problem_.key_heads * problem_.key_dim * wide,
                       v = problem_.value_heads * problem_.value_dim * wide,
                       number = problem_.value_heads * size_bytes(DType::f32);
    const bool forward = pass == RecurrencePass::forward;
    const std::int64_t there = forward ? 2 * q + v + 2 * number : v;
    const std::int64_t back = forward ? v : 2 * q + v + 2 * number;
    for (std::size_t i = 0; ranks > 1 && i < bytes_.size(); ++i) {
      const auto own = static_cast<std::int64_t>(pieces_.rows_of(static_cast<int>(i)).size());
      bytes_[i].rows =
          problem_.batch * ((problem_.seq_len - own) * (there / ranks) + own * (back / ranks) * (ranks - 1));
    }
    return bytes_;
  }

 private:
  void get(std::size_t from, int rank, bool with_transition) {
    if (way_.owner[from] == rank) return;
    StateBytes& bytes = bytes_[static_cast<std::size_t>(rank)];
    const std::int64_t lanes = problem_.batch * problem_.value_heads;
    bytes.states += size_bytes(DType::f32) * lanes * problem_.key_dim * problem_.value_dim;
    const std::int64_t n = problem_.rule == RecurrenceRule::decay ? 1 : problem_.key_dim;
    if (with_transition) bytes.transitions += size_bytes(DType::f32) * lanes * n * n;
  }

  const RecurrenceProblem& problem_;
  const SequencePieces pieces_;
  const Way way_;
  std::vector<StateBytes> bytes_;
};

}  // namespace

std::vector<StateBytes> expected_state_bytes(const RecurrenceRequest& request, RecurrencePass pass) {
  Counter counter(request, pass);
  const StateScan scan = request.strategy.scan;
  return scan == StateScan::heads ? counter.heads(pass) : counter.scans(scan);
}

}  // namespace cp::sim
