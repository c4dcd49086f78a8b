// Random splits that fit a list, and the split of a plain list element by element: the brute force for index
// maps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <variant>
#include <vector>

#include <rapidcheck.h>

#include "shared/base/types.h"
#include "shared/placement/split.h"
#include "tests/support/any_case.h"

namespace cp {

using Indices = std::vector<std::int64_t>;

// Which part takes each of `length` elements, dealt one by one.
inline std::vector<int> dealt(const Chunked&, std::size_t length, int parts) {
  std::vector<int> part(length);
  const auto chunk = static_cast<std::size_t>(ceil_div(static_cast<std::int64_t>(length), parts));
  for (std::size_t i = 0; i < length; ++i) part[i] = static_cast<int>(i / chunk);
  return part;
}
inline std::vector<int> dealt(const Balanced&, std::size_t length, int parts) {
  std::vector<int> part;
  for (int p = 0; p < parts; ++p) {
    const auto left = length - part.size(), parts_left = static_cast<std::size_t>(parts - p);
    part.insert(part.end(), (left + parts_left - 1) / parts_left, p);  // as even as what is left allows
  }
  return part;
}
inline std::vector<int> dealt(const Sized& sized, std::size_t, int) {
  std::vector<int> part;
  for (std::size_t i = 0; i < sized.sizes.size(); ++i) {
    part.insert(part.end(), static_cast<std::size_t>(sized.sizes[i]), static_cast<int>(i));
  }
  return part;
}
inline std::vector<int> dealt(const HeadTail&, std::size_t length, int parts) {
  std::vector<int> part = dealt(Balanced{}, length, 2 * parts);
  for (int& p : part) p = std::min(p, 2 * parts - 1 - p);
  return part;
}
inline std::vector<int> dealt(const Striped& striped, std::size_t length, int parts) {
  std::vector<int> part(length);
  for (std::size_t i = 0; i < length; ++i) {
    part[i] = static_cast<int>(static_cast<std::int64_t>(i) / striped.block % parts);
  }
  return part;
}
inline std::vector<int> dealt(const Dealt& by_list, std::size_t length, int) {
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
// Those of the list that lie in [begin, end).
inline Indices elements_within(const Indices& list, std::int64_t begin, std::int64_t end) {
  Indices within;
  for (const std::int64_t i : list) {
    if (begin <= i && i < end) within.push_back(i);
  }
  return within;
}
inline Indices split_elements(const PerSequence& documents, const Indices& list, int parts, int index) {
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
inline Indices split_elements(const Split& split, const Indices& list, int parts, int index) {
  return std::visit([&](const auto& rule) { return split_elements(rule, list, parts, index); }, split);
}

// Cuts of [0, total] in ascending order, 0 and total included: documents, some of them empty.
inline std::vector<std::int64_t> random_cuts(std::int64_t total, int inner_cuts) {
  std::vector<std::int64_t> cuts = {0, total};
  for (int i = 0; i < inner_cuts; ++i) cuts.push_back(*rc::gen::inRange<std::int64_t>(0, total + 1));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// `parts` sizes that sum to the length, some of them 0.
inline std::vector<std::int64_t> random_sizes(std::int64_t length, int parts) {
  std::vector<std::int64_t> sizes = random_cuts(length, parts - 1);
  std::adjacent_difference(sizes.begin(), sizes.end(), sizes.begin());
  sizes.erase(sizes.begin());
  return sizes;
}

// One that fits documents of any length.
inline std::variant<Chunked, Balanced, HeadTail, Striped> random_rule() {
  switch (*rc::gen::inRange(0, 4)) {
    case 0:
      return Chunked{};
    case 1:
      return Balanced{};
    case 2:
      return HeadTail{};
    default:
      return Striped{*rc::gen::inRange<std::int64_t>(1, 6)};
  }
}

// A split of any kind that divides the list, of a dimension of `dim_size`, among `parts`.
inline Split random_split(const Indices& list, std::int64_t dim_size, int parts) {
  const auto length = static_cast<std::int64_t>(list.size());
  return pick_case("split", [=]() -> Split {
    switch (*rc::gen::inRange(0, 6)) {
      case 5: {
        PerSequence documents{random_cuts(dim_size, *rc::gen::inRange(0, 6)), SizedEach{}};
        for (std::size_t k = 1; k < documents.cu_seqlens.size(); ++k) {
          const Indices document =
              elements_within(list, documents.cu_seqlens[k - 1], documents.cu_seqlens[k]);
          std::get<SizedEach>(documents.inner)
              .sizes.push_back(random_sizes(static_cast<std::int64_t>(document.size()), parts));
        }
        return documents;
      }
      case 4: {
        const auto block = *rc::gen::inRange<std::int64_t>(1, 6);
        Dealt dealt{block, {}};
        for (std::int64_t begin = 0; begin < length; begin += block) {
          dealt.owners.push_back(*rc::gen::inRange<std::int64_t>(0, parts));
        }
        return dealt;
      }
      case 0:
        return Sized{random_sizes(length, parts)};
      case 1:
        return PerSequence{random_cuts(dim_size, *rc::gen::inRange(0, 6)),
                           std::visit([](const auto& rule) { return InnerSplit(rule); }, random_rule())};
      default:
        return std::visit([](const auto& rule) { return Split(rule); }, random_rule());
    }
  });
}

}  // namespace cp
