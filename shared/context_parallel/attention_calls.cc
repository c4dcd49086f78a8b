#include "shared/context_parallel/attention_calls.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace cp::detail {
namespace {

// Consecutive queries [begin, end), each of which sees consecutive keys. From row to row the first key stays,
// and then goes up by one; the last one goes up by one, and then stays: the first and the last row say it
// all.
struct Strip {
  struct Keys {
    std::int64_t first = 0, last = 0;
    bool operator==(const Keys&) const = default;
  };
  std::int64_t begin = 0, end = 0;
  Keys top, bottom;  // of the first and the last row

  std::int64_t rows() const { return end - begin; }
  Keys keys_of(std::int64_t row) const {
    return {std::max(top.first, bottom.first - (end - 1 - row)),
            std::min(bottom.last, top.last + (row - begin))};
  }
  Strip cut(std::int64_t from, std::int64_t to) const { return {from, to, keys_of(from), keys_of(to - 1)}; }
  Range q() const { return {begin, rows()}; }
  Range k() const { return {top.first, bottom.last - top.first + 1}; }

  // The first rows from which the last key stays, and the first key goes up.
  std::int64_t last_key_stays() const { return begin + (bottom.last - top.last); }
  std::int64_t first_key_moves() const { return end - 1 - (bottom.first - top.first); }

  // In coordinates of the given ranges.
  MaskSlice slice(Range q_range, Range k_range) const {
    const std::int64_t diagonal = top.last - top.first, first_moves = bottom.first - top.first;
    MaskSlice result{
        begin - q_range.begin, rows(), top.first - k_range.begin, k().len, MaskSlice::Kind::full, 0, 0};
    if (first_moves > 0) {
      result.kind = MaskSlice::Kind::window;
      result.diagonal = diagonal, result.window = diagonal + rows() - first_moves;
    } else if (top.last != bottom.last) {
      result.kind = MaskSlice::Kind::causal, result.diagonal = diagonal;
    }
    return result;
  }
  MaskSlice slice() const { return slice(q(), k()); }
};

Strip strip_of(const MaskSlice& slice) {
  const auto keys_of = [&](std::int64_t row) {
    Strip::Keys keys{0, slice.k_len - 1};
    if (slice.kind != MaskSlice::Kind::full) keys.last = std::min(keys.last, row + slice.diagonal);
    if (slice.kind == MaskSlice::Kind::window)
      keys.first = std::max(keys.first, row + slice.diagonal - slice.window + 1);
    return Strip::Keys{slice.k_begin + keys.first, slice.k_begin + keys.last};
  };
  return {slice.q_begin, slice.q_begin + slice.q_len, keys_of(0), keys_of(slice.q_len - 1)};
}

// Both as one strip, if together they are one.
std::optional<Strip> below(const Strip& upper, const Strip& lower) {
  if (upper.end != lower.begin) return std::nullopt;
  const Strip both{upper.begin, lower.end, upper.top, lower.bottom};
  const bool same = both.keys_of(upper.end - 1) == upper.bottom && both.keys_of(lower.begin) == lower.top &&
                    both.top == both.keys_of(both.begin) && both.bottom == both.keys_of(both.end - 1);
  return same ? std::optional(both) : std::nullopt;
}
std::optional<Strip> beside(const Strip& left, const Strip& right) {
  const bool follows = left.top.last == left.bottom.last && right.top.first == right.bottom.first &&
                       left.top.last + 1 == right.top.first;
  if (!follows) return std::nullopt;
  return Strip{
      left.begin, left.end, {left.top.first, right.top.last}, {left.bottom.first, right.bottom.last}};
}

class Cutter {
 public:
  Cutter(const FusedAttention& library, const FusedShape& of) : library_(library), of_(of) {}

  std::vector<AttentionCall> cut(const std::vector<MaskSlice>& slices) {
    for (const Strip& strip : pieces(bands(slices))) place(strip);
    std::vector<Strip> exact;
    std::vector<AttentionCall> calls = fused_calls(exact);
    std::vector<MaskSlice> rest;
    for (const Strip& strip : exact) rest.push_back(strip.slice({0, 0}, {0, 0}));
    if (calls.size() > kFewCalls) leave_small(calls, rest);
    if (calls.empty()) return {exact_call(slices)};
    std::stable_sort(calls.begin(), calls.end(),
                     [](const AttentionCall& a, const AttentionCall& b) { return a.q.len > b.q.len; });
    if (!rest.empty()) calls.push_back(exact_call(rest));
    return calls;
  }

 private:
  // Strips of rows between which no slice begins or ends; of one row stretch, those whose keys follow one
  // another are one.
  static std::vector<Strip> bands(const std::vector<MaskSlice>& slices) {
    std::vector<std::int64_t> cuts;
    for (const MaskSlice& slice : slices)
      cuts.insert(cuts.end(), {slice.q_begin, slice.q_begin + slice.q_len});
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<Strip> all;
    for (const MaskSlice& slice : slices) {
      const Strip whole = strip_of(slice);
      auto cut = std::lower_bound(cuts.begin(), cuts.end(), whole.begin);
      for (; *cut < whole.end; ++cut) all.push_back(whole.cut(*cut, *(cut + 1)));
    }
    std::sort(all.begin(), all.end(), [](const Strip& a, const Strip& b) {
      return std::pair(a.begin, a.top.first) < std::pair(b.begin, b.top.first);
    });
    std::vector<Strip> joined;
    for (const Strip& strip : all) {
      if (!joined.empty() && joined.back().begin == strip.begin) {
        if (const auto both = beside(joined.back(), strip)) {
          joined.back() = *both;
          continue;
        }
      }
      joined.push_back(strip);
    }
    return joined;
  }

  // Cuts strips at the rows where a bound begins or ends to move.
  static std::vector<Strip> pieces(const std::vector<Strip>& strips) {
    std::vector<Strip> result;
    for (const Strip& strip : strips) {
      std::vector<std::int64_t> cuts = {strip.begin, strip.end};
      // A row at the bend fits both sides. Put above, the causal part has its last corner; put below, more
      // rows see all keys.
      if (strip.top.last != strip.bottom.last)
        cuts.push_back(std::min(strip.end, strip.last_key_stays() + 1));
      if (strip.top.first != strip.bottom.first) cuts.push_back(strip.first_key_moves() + 1);
      std::sort(cuts.begin(), cuts.end());
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        if (cuts[i] < cuts[i + 1]) result.push_back(strip.cut(cuts[i], cuts[i + 1]));
      }
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const Strip& a, const Strip& b) { return a.begin < b.begin; });
    return result;
  }

  // Joins the piece to what ends above it, where that is one form, or part of what is none.
  void place(const Strip& piece) {
    for (std::size_t& index : ending_[piece.begin]) {
      Strip& strip = strips_[index];
      const std::optional<Strip> both = below(strip, piece);
      if (!both || !is_better(*both, strip, piece)) continue;
      strip = *both;
      ending_[piece.end].push_back(index);
      std::swap(index, ending_[piece.begin].back());
      ending_[piece.begin].pop_back();
      return;
    }
    ending_[piece.end].push_back(strips_.size());
    strips_.push_back(piece);
  }

  bool is_better(const Strip& both, const Strip& above, const Strip& piece) const {
    if (takes({both})) return true;
    const bool above_taken = takes({above}), piece_taken = takes({piece});
    // A single row is not worth a call of its own beside an exact one.
    return (!above_taken && !piece_taken) || (!above_taken && piece.rows() == 1) ||
           (!piece_taken && above.rows() == 1);
  }

  static Range all_q(const std::vector<Strip>& strips) {
    return {strips.front().begin, strips.back().end - strips.front().begin};
  }
  static Range all_k(const std::vector<Strip>& strips) {
    const std::int64_t begin = strips.front().k().begin;
    return {begin, strips.back().k().begin + strips.back().k().len - begin};
  }

  // Whether the library takes them as one call. They follow one another without gaps.
  bool takes(const std::vector<Strip>& strips) const {
    if (strips.size() > 1 && (!library_.packed || of_.batch != 1)) return false;
    const Range q = all_q(strips), k = all_k(strips);
    std::vector<MaskSlice> slices;
    for (const Strip& strip : strips) slices.push_back(strip.slice(q, k));
    const std::optional<FusedShape> form = fused_form(slices, q.len, k.len);
    if (!form) return false;
    FusedShape shape = of_;
    shape.q_len = form->q_len, shape.k_len = form->k_len;
    shape.mask = form->mask, shape.window = form->window, shape.documents = form->documents;
    return !refuse(library_, shape);
  }

  // A call for each strip, or for as many as are documents of one packed mask. `exact`: the others.
  std::vector<AttentionCall> fused_calls(std::vector<Strip>& exact) const {
    std::vector<Strip> strips;
    for (const Strip& strip : strips_) (has_form(strip) ? strips : exact).push_back(strip);
    std::vector<AttentionCall> calls;
    for (std::size_t begin = 0; begin < strips.size();) {
      std::size_t end = begin + 1;
      while (end < strips.size() && follows(strips[end - 1], strips[end])) ++end;
      // Twice as many as long as it goes, then one by one: a long list is not tried as often as it has
      // documents.
      const auto fits = [&](std::size_t count) {
        return takes({strips.begin() + static_cast<std::ptrdiff_t>(begin),
                      strips.begin() + static_cast<std::ptrdiff_t>(begin + count)});
      };
      const std::size_t most = end - begin;
      std::size_t count = 1, failed = most + 1;
      while (failed - count > 1) {
        const std::size_t next = failed > most ? std::min(most, 2 * count) : count + (failed - count) / 2;
        if (fits(next)) {
          count = next;
          if (next == most) break;
        } else {
          failed = next;
        }
      }
      const std::vector<Strip> documents(strips.begin() + static_cast<std::ptrdiff_t>(begin),
                                         strips.begin() + static_cast<std::ptrdiff_t>(begin + count));
      begin += count;
      if (count == 1 && !takes(documents)) {
        exact.push_back(documents.front());
        continue;
      }
      AttentionCall call{AttentionEngine::fused, all_q(documents), all_k(documents), {}};
      for (const Strip& document : documents) call.slices.push_back(document.slice(call.q, call.k));
      calls.push_back(std::move(call));
    }
    return calls;
  }
  static bool has_form(const Strip& strip) {
    return fused_form({strip.slice()}, strip.rows(), strip.k().len).has_value();
  }
  static bool follows(const Strip& above, const Strip& next) {
    return above.end == next.begin && above.k().begin + above.k().len == next.k().begin;
  }

  // Moves the slices of calls that are not worth their launch to those of the exact one.
  void leave_small(std::vector<AttentionCall>& calls, std::vector<MaskSlice>& rest) const {
    std::stable_sort(calls.begin(), calls.end(),
                     [&](const AttentionCall& a, const AttentionCall& b) { return flops(a) > flops(b); });
    const auto small = std::find_if(calls.begin(), calls.end(),
                                    [&](const AttentionCall& call) { return flops(call) < kLeastCallFlops; });
    const auto first =
        std::min(small, calls.begin() + static_cast<std::ptrdiff_t>(std::min(kMostCalls, calls.size())));
    for (auto call = first; call != calls.end(); ++call) {
      for (MaskSlice slice : call->slices) {
        slice.q_begin += call->q.begin, slice.k_begin += call->k.begin;
        rest.push_back(slice);
      }
    }
    calls.erase(first, calls.end());
  }
  // Of the forward pass. The keys of a form's rows grow, or stay, evenly.
  double flops(const AttentionCall& call) const {
    double pairs = 0;
    for (const MaskSlice& slice : call.slices) {
      const Strip strip = strip_of(slice);
      const auto keys = [](const Strip::Keys& of_row) {
        return static_cast<double>(of_row.last - of_row.first + 1);
      };
      pairs += static_cast<double>(strip.rows()) * (keys(strip.top) + keys(strip.bottom)) / 2;
    }
    return 2 * static_cast<double>(of_.batch * of_.q_heads * (of_.head_dim + of_.v_head_dim)) * pairs;
  }

  static AttentionCall exact_call(std::vector<MaskSlice> slices) {
    std::int64_t q_begin = slices.front().q_begin, q_end = q_begin, k_begin = slices.front().k_begin,
                 k_end = k_begin;
    for (const MaskSlice& slice : slices) {
      q_begin = std::min(q_begin, slice.q_begin), q_end = std::max(q_end, slice.q_begin + slice.q_len);
      k_begin = std::min(k_begin, slice.k_begin), k_end = std::max(k_end, slice.k_begin + slice.k_len);
    }
    for (MaskSlice& slice : slices) slice.q_begin -= q_begin, slice.k_begin -= k_begin;
    return {
        AttentionEngine::exact, {q_begin, q_end - q_begin}, {k_begin, k_end - k_begin}, std::move(slices)};
  }

  const FusedAttention& library_;
  const FusedShape& of_;
  std::vector<Strip> strips_;                                // by first row
  std::map<std::int64_t, std::vector<std::size_t>> ending_;  // which of them end before a row
};

}  // namespace

std::vector<AttentionCall> cut_into_calls(const std::vector<MaskSlice>& slices, const FusedAttention& library,
                                          const FusedShape& of) {
  return Cutter(library, of).cut(slices);
}

}  // namespace cp::detail
