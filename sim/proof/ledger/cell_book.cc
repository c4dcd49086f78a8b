#include "sim/proof/ledger/cell_book.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/proof/ledger/mask_rule.h"

namespace cp::sim {
namespace {

// A set of the keys 0 .. size-1.
class KeyBits {
 public:
  explicit KeyBits(std::int64_t size) : words_(idx(size / 64 + 1)) {}

  void clear() { std::fill(words_.begin(), words_.end(), 0); }
  bool contains(std::int64_t key) const { return (words_[idx(key / 64)] >> (key % 64) & 1) != 0; }

  // Adds [begin, end). Returns the first of them that was there already.
  std::optional<std::int64_t> add(std::int64_t begin, std::int64_t end) {
    std::optional<std::int64_t> twice;
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t size = std::min(64 - at % 64, end - at);
      const std::uint64_t bits = (size == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << size) - 1)
                                 << (at % 64);
      std::uint64_t& word = words_[idx(at / 64)];
      if (!twice && (word & bits) != 0) twice = at / 64 * 64 + std::countr_zero(word & bits);
      word |= bits;
      at += size;
    }
    return twice;
  }

  // The first stretch of keys of [begin, end) that are in the set, or that are not; empty where there is
  // none.
  KeyInterval find(std::int64_t begin, std::int64_t end, bool in_set) const {
    const auto skip = [&](std::int64_t at, bool value) {  // the first one from `at` on that is not `value`
      while (at < end) {
        const std::uint64_t word = value ? ~words_[idx(at / 64)] : words_[idx(at / 64)];
        const std::uint64_t rest = word >> (at % 64);
        if (rest != 0) return std::min(end, at + std::countr_zero(rest));
        at += 64 - at % 64;
      }
      return end;
    };
    const std::int64_t first = skip(begin, !in_set);
    return {first, skip(first, in_set)};
  }

 private:
  std::vector<std::uint64_t> words_;
};

std::string keys_text(const KeyInterval& keys) {
  return keys.end - keys.begin == 1 ? str("key ", keys.begin)
                                    : str("keys [", keys.begin, ", ", keys.end, ")");
}

}  // namespace

class CellBook::Auditor {
 public:
  Auditor(const CellBook& book, const Names& names, Findings& findings)
      : book_(book), names_(names), findings_(findings), bits_(book.problem_.kv_len) {}

  void audit(std::int64_t query, const Page& page) {
    std::vector<std::int32_t> sets;
    for (const Entry* entry : page) sets.push_back(entry->lanes);
    std::sort(sets.begin(), sets.end());
    sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
    const std::vector<std::pair<std::int64_t, std::int32_t>> lanes = lanes_of(sets);
    const bool disjoint = std::adjacent_find(lanes.begin(), lanes.end(), [](const auto& a, const auto& b) {
                            return a.first == b.first;
                          }) == lanes.end();
    if (disjoint) {
      for (const std::int32_t set : sets) {
        audit_lanes(query, page, book_.lane_sets_[idx(set)], [&](const Entry& e) { return e.lanes == set; });
      }
    }
    std::size_t next = 0;
    const std::int64_t all = book_.problem_.batch * book_.problem_.q_heads;
    for (std::int64_t lane = 0; lane < all; ++lane) {
      const std::size_t begin = next;
      while (next < lanes.size() && lanes[next].first == lane) ++next;
      if (disjoint && next > begin) continue;
      audit_lanes(query, page, {lane}, [&](const Entry& entry) {
        const std::vector<std::int64_t>& set = book_.lane_sets_[idx(entry.lanes)];
        return std::binary_search(set.begin(), set.end(), lane);
      });
    }
  }

 private:
  // Each lane of the sets with its set, ascending.
  std::vector<std::pair<std::int64_t, std::int32_t>> lanes_of(const std::vector<std::int32_t>& sets) const {
    std::vector<std::pair<std::int64_t, std::int32_t>> lanes;
    for (const std::int32_t set : sets) {
      for (const std::int64_t lane : book_.lane_sets_[idx(set)]) lanes.emplace_back(lane, set);
    }
    if (sets.size() > 1) std::sort(lanes.begin(), lanes.end());
    return lanes;
  }

  // Lanes of one batch entry after the other where entries have masks of their own.
  template <class Belongs>
  void audit_lanes(std::int64_t query, const Page& page, const std::vector<std::int64_t>& lanes,
                   const Belongs& belongs) {
    if (book_.problem_.cu_seqlens_of_entry.empty()) return audit_alike(query, page, lanes, belongs);
    for (auto begin = lanes.begin(); begin != lanes.end();) {
      const std::int64_t batch = batch_of(*begin);
      const auto end =
          std::find_if(begin, lanes.end(), [&](std::int64_t lane) { return batch_of(lane) != batch; });
      audit_alike(query, page, {begin, end}, belongs);
      begin = end;
    }
  }
  std::int64_t batch_of(std::int64_t lane) const { return lane / book_.problem_.q_heads; }

  template <class Belongs>
  void audit_alike(std::int64_t query, const Page& page, const std::vector<std::int64_t>& lanes,
                   const Belongs& belongs) {
    bits_.clear();
    for (const Entry* entry : page) {
      if (!belongs(*entry)) continue;
      for (std::int32_t block = 0; block < entry->count; ++block) {
        const std::int64_t begin = entry->begin + std::int64_t{entry->stride} * block;
        const auto twice = bits_.add(begin, begin + entry->run);
        if (twice) report_twice(query, *twice, page, *entry, lanes, belongs);
      }
    }
    const KeyInterval allowed = visible_keys(book_.problem_, batch_of(lanes.front()), query);
    const KeyInterval missing = bits_.find(allowed.begin, allowed.end, false);
    if (missing.begin < missing.end) {
      findings_.add([&] {
        return str("nobody computed query ", query, " with ", keys_text(missing), " in ", lanes_text(lanes),
                   ", which the mask allows", names_.holders(lanes.front(), query, missing.begin));
      });
    }
    const std::int64_t kv_len = book_.problem_.kv_len;
    for (const KeyInterval& outside : {KeyInterval{0, allowed.begin}, KeyInterval{allowed.end, kv_len}}) {
      const KeyInterval forbidden = bits_.find(outside.begin, outside.end, true);
      if (forbidden.begin >= forbidden.end) continue;
      findings_.add([&] {
        return str(who(forbidden.begin, page, belongs, nullptr), " computed query ", query, " with ",
                   keys_text(forbidden), " in ", lanes_text(lanes), ", which sees ",
                   allowed.begin < allowed.end ? keys_text(allowed) : str("no key"));
      });
    }
  }

  template <class Belongs>
  void report_twice(std::int64_t query, std::int64_t key, const Page& page, const Entry& second,
                    const std::vector<std::int64_t>& lanes, const Belongs& belongs) {
    findings_.add([&] {
      return str(names_.step(second.step), " computed query ", query, " with key ", key, " in ",
                 lanes_text(lanes), " again, after ", who(key, page, belongs, &second));
    });
  }

  // The first step that computed the query with the key.
  template <class Belongs>
  std::string who(std::int64_t key, const Page& page, const Belongs& belongs, const Entry* before) const {
    for (const Entry* entry : page) {
      if (entry == before) break;
      const std::int64_t at = key - entry->begin;
      if (belongs(*entry) && at >= 0 && at / entry->stride < entry->count && at % entry->stride < entry->run)
        return names_.step(entry->step);
    }
    return before != nullptr ? str("itself") : str("somebody");
  }

  std::string lanes_text(const std::vector<std::int64_t>& lanes) const {
    const std::int64_t heads = book_.problem_.q_heads;
    return str("batch ", lanes.front() / heads, ", head ", lanes.front() % heads,
               lanes.size() > 1 ? str(" (and ", lanes.size() - 1, " more)") : "");
  }

  const CellBook& book_;
  const Names& names_;
  Findings& findings_;
  KeyBits bits_;
};

CellBook::CellBook(const AttentionProblem& problem) : problem_(problem) {}

std::int32_t CellBook::lanes(std::vector<std::int64_t> lanes) {
  const auto found = std::find(lane_sets_.begin(), lane_sets_.end(), lanes);
  const auto number = static_cast<std::int32_t>(found - lane_sets_.begin());
  if (found == lane_sets_.end()) lane_sets_.push_back(std::move(lanes));
  return number;
}

void CellBook::enter(std::int64_t query, std::int32_t lanes, const Run& keys, std::int32_t step) {
  const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  entries_.push_back({narrow(query), lanes, step, narrow(keys.begin), narrow(keys.run), narrow(keys.stride),
                      narrow(keys.count)});
}

std::vector<CellBook::Page> CellBook::pages() const {
  std::vector<Page> pages(idx(problem_.q_len));
  std::vector<std::size_t> sizes(pages.size());
  for (const Entry& entry : entries_) ++sizes[idx(entry.query)];
  for (std::size_t query = 0; query < pages.size(); ++query) pages[query].reserve(sizes[query]);
  for (const Entry& entry : entries_) pages[idx(entry.query)].push_back(&entry);
  return pages;
}

std::int64_t CellBook::close(const Names& names, Findings& findings) {
  std::int64_t cells = 0;
  for (const Entry& entry : entries_) {
    cells += std::int64_t{entry.run} * entry.count *
             static_cast<std::int64_t>(lane_sets_[idx(entry.lanes)].size());
  }
  Auditor auditor(*this, names, findings);
  const std::vector<Page> book = pages();
  for (std::int64_t query = 0; query < problem_.q_len; ++query) auditor.audit(query, book[idx(query)]);
  entries_.clear();
  return cells;
}

}  // namespace cp::sim
