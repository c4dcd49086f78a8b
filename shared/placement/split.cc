#include "shared/placement/split.h"

#include <algorithm>
#include <cstddef>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/types.h"
#include "shared/placement/runs.h"

namespace cp {
namespace {

// Which of the positions 0 .. length-1 are part `index` of `parts`: one overload for each split that makes
// ranges.

IndexRange part_range(const Chunked&, std::int64_t length, std::int64_t parts, std::int64_t index) {
  const std::int64_t chunk = ceil_div(length, parts);
  return {std::min(chunk * index, length), std::min(chunk * (index + 1), length)};
}

IndexRange part_range(const Balanced&, std::int64_t length, std::int64_t parts, std::int64_t index) {
  const std::int64_t size = length / parts, longer = length % parts;
  const std::int64_t begin = size * index + std::min(index, longer);
  return {begin, begin + size + (index < longer ? 1 : 0)};
}

IndexRange range_of_sizes(const std::vector<std::int64_t>& sizes, std::int64_t index) {
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < index; ++i) begin += sizes[static_cast<std::size_t>(i)];
  return {begin, begin + sizes[static_cast<std::size_t>(index)]};
}

IndexRange part_range(const Sized& sized, std::int64_t, std::int64_t, std::int64_t index) {
  return range_of_sizes(sized.sizes, index);
}

// The same as runs in local order, some of which may be empty: for each split that acts on positions.

template <class RangeSplit, class Emit>
void part_runs(const RangeSplit& split, std::int64_t length, std::int64_t parts, std::int64_t index,
               const Emit& emit) {
  const IndexRange range = part_range(split, length, parts, index);
  emit(Run{range.begin, range.end - range.begin, range.end - range.begin, 1});
}

template <class Emit>
void part_runs(const HeadTail&, std::int64_t length, std::int64_t parts, std::int64_t index,
               const Emit& emit) {
  part_runs(Balanced{}, length, 2 * parts, index, emit);
  part_runs(Balanced{}, length, 2 * parts, 2 * parts - 1 - index, emit);
}

template <class Emit>
void part_runs(const Striped& striped, std::int64_t length, std::int64_t parts, std::int64_t index,
               const Emit& emit) {
  const std::int64_t block = striped.block;
  const std::int64_t blocks = length / block;
  const std::int64_t count = blocks > index ? (blocks - index - 1) / parts + 1 : 0;
  if (count > 0) emit(Run{index * block, block, count > 1 ? parts * block : block, count});
  const std::int64_t rest = length % block;
  if (blocks % parts == index) emit(Run{blocks * block, rest, rest, 1});
}

template <class Emit>
void part_runs(const Dealt& dealt, std::int64_t length, std::int64_t, std::int64_t index, const Emit& emit) {
  for (std::size_t i = 0; i < dealt.owners.size(); ++i) {
    if (dealt.owners[i] != index) continue;
    const std::int64_t begin = static_cast<std::int64_t>(i) * dealt.block;
    const std::int64_t size = std::min(dealt.block, length - begin);
    emit(Run{begin, size, size, 1});
  }
}

// Appends the indices of the list at the positions that emit_positions(emit) gives.
template <class EmitPositions>
void append_positions(const IndexSet& list, const EmitPositions& emit_positions, RunBuilder& out) {
  if (list.size() == 1 && is_contiguous(list.front())) {
    emit_positions([&](Run run) {
      run.begin += list.front().begin;
      out.append(run);
    });
    return;
  }
  RunBuilder positions;
  emit_positions([&](const Run& run) { positions.append(run); });
  for (const Run& run : compose(list, positions.take())) out.append(run);
}

template <class SimpleSplit>
void append_part(const SimpleSplit& split, const IndexSet& list, int parts, int index, RunBuilder& out) {
  append_positions(
      list, [&](const auto& emit) { part_runs(split, size(list), parts, index, emit); }, out);
}

// Calls f(document's number, what the list holds of it) for each document, in order.
template <class F>
void for_each_document(const std::vector<std::int64_t>& cu_seqlens, const IndexSet& list, const F& f) {
  const RunFinder finder(list);
  std::vector<std::size_t> touched;  // runs of the list that touch the document, in local order
  RunBuilder document;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    const std::int64_t begin = cu_seqlens[i - 1], end = cu_seqlens[i];
    touched.clear();
    finder.for_each(begin, end, [&](std::size_t run) { touched.push_back(run); });
    std::sort(touched.begin(), touched.end());
    for (const std::size_t run : touched) {
      clip_run(list[run], begin, end, [&](const Run& piece) { document.append(piece); });
    }
    f(i - 1, document.take());
  }
}

void append_part(const PerSequence& documents, const IndexSet& list, int parts, int index, RunBuilder& out) {
  for_each_document(documents.cu_seqlens, list, [&](std::size_t document, const IndexSet& rest) {
    if (rest.empty()) return;
    std::visit(Overloaded{[&](const SizedEach& each) {
                            const IndexRange range = range_of_sizes(each.sizes[document], index);
                            const std::int64_t held = range.end - range.begin;
                            append_positions(
                                rest,
                                [&](const auto& emit) {
                                  emit(Run{range.begin, held, held, 1});
                                },
                                out);
                          },
                          [&](const auto& inner) { append_part(inner, rest, parts, index, out); }},
               documents.inner);
  });
}

// Enough of a long list to recognise it by.
std::string excerpt(const std::vector<std::int64_t>& values) {
  // Chosen: ten numbers of up to six digits fit on one line of a terminal.
  constexpr std::size_t kHead = 8, kTail = 2;
  if (values.size() <= kHead + kTail + 1) return join(values, "/");
  const auto first = values.begin(), last = values.end();
  return str(join(std::vector(first, first + kHead), "/"), "/.../",
             join(std::vector(last - kTail, last), "/"));
}

// Why the sizes do not fit, with sizes that would; nothing where they do.
std::optional<std::string> misfit(const std::vector<std::int64_t>& sizes, std::int64_t length, int parts) {
  const auto because = [&](const auto&... reason) {
    std::vector<std::int64_t> fitting;
    for (int i = 0; i < parts; ++i) {
      const IndexRange range = part_range(Balanced{}, length, parts, i);
      fitting.push_back(range.end - range.begin);
    }
    return str("sizes ", excerpt(sizes), " ", reason..., "; use, for example, sizes:", excerpt(fitting));
  };
  if (sizes.size() != static_cast<std::size_t>(parts))
    return because("are for ", sizes.size(), " ranks, but the axis has ", parts);
  std::int64_t left = length;
  for (const std::int64_t size : sizes) {
    if (size < 0) return because("hold ", size, ", but a rank cannot hold fewer than 0 indices");
    if (size > left) return because("sum to more than the ", length, " indices that they split");
    left -= size;
  }
  if (left > 0) return because("sum to ", length - left, ", but they split ", length, " indices");
  return std::nullopt;
}

// What the sizes sum to, at most `most`.
std::int64_t sum_up_to(const std::vector<std::int64_t>& sizes, std::int64_t most) {
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes)
    sum = size >= most - sum ? most : sum + std::max<std::int64_t>(size, 0);
  return sum;
}

template <class AnyListFits>
void validate(const AnyListFits&, const IndexSet&, int) {}

void validate(const Sized& sized, const IndexSet& list, int parts) {
  if (const auto why = misfit(sized.sizes, size(list), parts)) throw InvalidInput(*why);
}

void validate(const Striped& striped, const IndexSet&, int) {
  if (striped.block >= 1) return;
  throw InvalidInput(str("striped:", striped.block, " has a block below 1; use striped:1 or more"));
}

void validate(const Dealt& dealt, const IndexSet& list, int parts) {
  const auto reject = [&](const auto&... reason) {
    throw InvalidInput(str("dealt:", dealt.block, ":", excerpt(dealt.owners), " ", reason...));
  };
  if (dealt.block < 1) reject("has a block below 1; use 1 or more");
  const std::int64_t length = size(list), blocks = ceil_div(length, dealt.block);
  if (blocks != static_cast<std::int64_t>(dealt.owners.size())) {
    reject("names ", dealt.owners.size(), " owners, but ", length, " indices are ", blocks, " blocks of ",
           dealt.block);
  }
  for (const std::int64_t owner : dealt.owners) {
    if (owner < 0 || owner >= parts) reject("deals to rank ", owner, " of ", parts, "; use 0 to ", parts - 1);
  }
}

void validate_cuts(const std::vector<std::int64_t>& cuts, std::int64_t dim_size) {
  const auto reject = [&](const auto&... reason) {
    throw InvalidInput(str("cu_seqlens ", excerpt(cuts), " ", reason...));
  };
  if (cuts.empty()) reject("are empty; use, for example, 0/", dim_size);
  if (cuts.front() != 0) reject("begin with ", cuts.front(), "; the first document begins at 0");
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i] < cuts[i - 1]) {
      reject("descend from ", cuts[i - 1], " to ", cuts[i],
             "; give the ends of the documents in ascending order");
    }
  }
  if (cuts.back() != dim_size) {
    reject("end with ", cuts.back(), ", but the dimension has ", dim_size, " elements; end them with ",
           dim_size, " (padding can be a document of its own)");
  }
}

void validate_each(const SizedEach& each, const std::vector<std::int64_t>& cuts, const IndexSet& list,
                   int parts) {
  const std::size_t documents = cuts.size() - 1;
  if (each.sizes.size() != documents) {
    throw InvalidInput(str(
        "sizes are given for ", each.sizes.size(), " documents, but cu_seqlens ", excerpt(cuts), " cut ",
        documents, "; give one list for each document, for example per_sequence:0/10/50:sizes:4/6:30/10"));
  }
  for_each_document(cuts, list, [&](std::size_t document, const IndexSet& rest) {
    const std::int64_t begin = cuts[document], end = cuts[document + 1];
    // Where earlier axes left nothing of a document, any sizes of one that is no longer will do.
    const std::int64_t length = rest.empty() ? sum_up_to(each.sizes[document], end - begin) : size(rest);
    if (const auto why = misfit(each.sizes[document], length, parts))
      throw InvalidInput(str("document ", document, " at ", begin, " .. ", end, ": ", *why));
  });
}

void validate(const PerSequence& documents, const IndexSet& list, std::int64_t dim_size, int parts) {
  validate_cuts(documents.cu_seqlens, dim_size);
  std::visit(
      Overloaded{[&](const SizedEach& each) { validate_each(each, documents.cu_seqlens, list, parts); },
                 [&](const auto& inner) { validate(inner, list, parts); }},
      documents.inner);
}

}  // namespace

IndexSet split_part(const Split& split, const IndexSet& list, int parts, int index) {
  RunBuilder out;
  std::visit([&](const auto& rule) { append_part(rule, list, parts, index, out); }, split);
  return out.take();
}

std::optional<IndexRange> split_range(const Split& split, IndexRange range, int parts, int index) {
  return std::visit(
      [&](const auto& rule) -> std::optional<IndexRange> {
        if constexpr (requires { part_range(rule, 0, 1, 0); }) {
          const IndexRange positions = part_range(rule, range.end - range.begin, parts, index);
          return IndexRange{range.begin + positions.begin, range.begin + positions.end};
        } else {
          return std::nullopt;
        }
      },
      split);
}

bool fits_one_length(const Split& split) {
  const auto* documents = std::get_if<PerSequence>(&split);
  return std::holds_alternative<Sized>(split) || std::holds_alternative<Dealt>(split) ||
         (documents != nullptr && std::holds_alternative<SizedEach>(documents->inner));
}

void validate_split(const Split& split, const IndexSet& list, std::int64_t dim_size, int parts) {
  std::visit(Overloaded{[&](const PerSequence& documents) { validate(documents, list, dim_size, parts); },
                        [&](const auto& rule) { validate(rule, list, parts); }},
             split);
}

}  // namespace cp
