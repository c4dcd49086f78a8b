// Random splits that fit a list.
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
#include "sim/proof/exhaustive/index_oracle.h"
#include "tests/support/any_case.h"

namespace cp {

using sim::elements_within;
using sim::Indices;
using sim::split_elements;

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
