#include "sim/proof/exhaustive/index_oracle.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <variant>

#include "shared/base/types.h"

namespace cp::sim {
namespace {

// Which part takes each of `length` elements, dealt one by one.
std::vector<int> dealt(const Chunked&, std::size_t length, int parts) {
  std::vector<int> part(length);
  const auto chunk = static_cast<std::size_t>(ceil_div(static_cast<std::int64_t>(length), parts));
  for (std::size_t i = 0; i < length; ++i) part[i] = static_cast<int>(i / chunk);
  return part;
}
std::vector<int> dealt(const Balanced&, std::size_t length, int parts) {
  std::vector<int> part;
  for (int p = 0; p < parts; ++p) {
    const auto left = length - part.size(), parts_left = static_cast<std::size_t>(parts - p);
    part.insert(part.end(), (left + parts_left - 1) / parts_left, p);  // as even as what is left allows
  }
  return part;
}
std::vector<int> dealt(const Sized& sized, std::size_t, int) {
  std::vector<int> part;
  for (std::size_t i = 0; i < sized.sizes.size(); ++i) {
    part.insert(part.end(), static_cast<std::size_t>(sized.sizes[i]), static_cast<int>(i));
  }
  return part;
}
std::vector<int> dealt(const HeadTail&, std::size_t length, int parts) {
  std::vector<int> part = dealt(Balanced{}, length, 2 * parts);
  for (int& p : part) p = std::min(p, 2 * parts - 1 - p);
  return part;
}
std::vector<int> dealt(const Striped& striped, std::size_t length, int parts) {
  std::vector<int> part(length);
  for (std::size_t i = 0; i < length; ++i) {
    part[i] = static_cast<int>(static_cast<std::int64_t>(i) / striped.block % parts);
  }
  return part;
}
std::vector<int> dealt(const Dealt& by_list, std::size_t length, int) {
  std::vector<int> part(length);
  for (std::size_t i = 0; i < length; ++i) {
    part[i] = static_cast<int>(by_list.owners[i / static_cast<std::size_t>(by_list.block)]);
  }
  return part;
}

template <class SimpleSplit>
Indices split_elements(const SimpleSplit& split, const Indices& list, int parts, int index) {
  const std::vector<int> part = dealt(split, list.size(), parts);
  Indices taken;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (part[i] == index) taken.push_back(list[i]);
  }
  return taken;
}
Indices split_elements(const PerSequence& documents, const Indices& list, int parts, int index) {
  Indices taken;
  for (std::size_t k = 1; k < documents.cu_seqlens.size(); ++k) {
    const Indices document = elements_within(list, documents.cu_seqlens[k - 1], documents.cu_seqlens[k]);
    const Indices part = std::visit(
        Overloaded{[&](const SizedEach& each) {
                     // What the list lacks as a whole is with other ranks of an earlier axis.
                     return document.empty()
                                ? document
                                : split_elements(Sized{each.sizes[k - 1]}, document, parts, index);
                   },
                   [&](const auto& inner) { return split_elements(inner, document, parts, index); }},
        documents.inner);
    taken.insert(taken.end(), part.begin(), part.end());
  }
  return taken;
}

}  // namespace

Indices elements_within(const Indices& list, std::int64_t begin, std::int64_t end) {
  Indices within;
  for (const std::int64_t i : list) {
    if (begin <= i && i < end) within.push_back(i);
  }
  return within;
}

Indices split_elements(const Split& split, const Indices& list, int parts, int index) {
  return std::visit([&](const auto& rule) { return split_elements(rule, list, parts, index); }, split);
}

Indices indices_by_elements(const Layout& layout, int dim, Rank rank) {
  Indices list(static_cast<std::size_t>(layout.shape[static_cast<std::size_t>(dim)]));
  std::iota(list.begin(), list.end(), 0);
  for (const int axis : layout.shard_axes[static_cast<std::size_t>(dim)]) {
    const auto& shard = std::get<Shard>(layout.placements[static_cast<std::size_t>(axis)]);
    list = split_elements(shard.split, list, layout.mesh.axis_size(axis), layout.mesh.coordinate(rank, axis));
  }
  return list;
}

std::vector<std::int64_t> element_numbers(const Layout& layout, Rank rank) {
  std::vector<std::int64_t> numbers = {0};
  for (std::size_t dim = 0; dim < layout.shape.size(); ++dim) {
    const Indices indices = indices_by_elements(layout, static_cast<int>(dim), rank);
    std::vector<std::int64_t> next;
    for (const std::int64_t row : numbers) {
      for (const std::int64_t index : indices) next.push_back(row * layout.shape[dim] + index);
    }
    numbers = std::move(next);
  }
  return numbers;
}

std::int64_t contribution_of(const Layout& layout, Rank rank) {
  std::int64_t contribution = 0;
  for (int axis = 0; axis < layout.mesh.num_axes(); ++axis) {
    if (!std::holds_alternative<Partial>(layout.placements[static_cast<std::size_t>(axis)])) continue;
    contribution = contribution * layout.mesh.axis_size(axis) + layout.mesh.coordinate(rank, axis);
  }
  return contribution;
}

std::int64_t num_contributions(const Layout& layout) {
  std::int64_t last = 0;
  for (const Rank rank : layout.mesh.ranks()) last = std::max(last, contribution_of(layout, rank));
  return last + 1;
}

}  // namespace cp::sim
