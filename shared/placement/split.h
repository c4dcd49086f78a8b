// Splits: how one mesh axis divides the indices of one tensor dimension among its ranks.
//
// A split acts on an index list (all of the dimension, or what earlier axes left), so that splits nest.
// Adding one: a struct here, an index map and a validation in split.cc, its text in split_text.cc. Everything
// else follows from the index sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/placement/index_set.h"

namespace cp {

// ceil(L/n) each, the last ones short or empty: the rule of torch.chunk, and so of PyTorch's Shard.
struct Chunked {
  bool operator==(const Chunked&) const = default;
};

// The first L % n ranks hold one more: MindSpeed's and NumPy's array_split rule.
struct Balanced {
  bool operator==(const Balanced&) const = default;
};

// Explicit sizes, one for each rank of the axis; their sum must be the length of the list that is split.
struct Sized {
  std::vector<std::int64_t> sizes;
  bool operator==(const Sized&) const = default;
};

// Balanced into 2n parts; rank r holds parts r and 2n-1-r, in this order (zigzag; equal work under a causal
// mask).
struct HeadTail {
  bool operator==(const HeadTail&) const = default;
};

// Blocks of `block` indices dealt round-robin: rank r holds blocks r, r+n, r+2n, ... The last block may be
// short.
struct Striped {
  std::int64_t block = 1;
  bool operator==(const Striped&) const = default;
};

// Blocks of `block` indices, the last one short, dealt by list: block i belongs to rank owners[i]. For
// balancing work that no regular pattern balances. Needs an owner for each block, as many as the list that is
// split has.
struct Dealt {
  std::int64_t block = 1;
  std::vector<std::int64_t> owners;
  bool operator==(const Dealt&) const = default;
};

// Explicit sizes within each document of a packed sequence: sizes[d][r] elements of document d belong to rank
// r, the first ones to rank 0. One list for each document, one size for each rank of the axis; they must sum
// to what is split of the document. For documents that some other rule has split, such as all_split_sizes of
// MindSpeed's packed_data_gather.
struct SizedEach {
  std::vector<std::vector<std::int64_t>> sizes;
  bool operator==(const SizedEach&) const = default;
};

// Splits that may act within each document of a packed sequence.
using InnerSplit = std::variant<Chunked, Balanced, HeadTail, Striped, SizedEach>;

// Packed documents, each split on its own; a rank holds its parts of all documents, in document order. Cuts
// are at GLOBAL boundaries: cu_seqlens = {0, 10, 50} means documents [0, 10) and [10, 50) of the tensor
// dimension, whatever earlier axes left. Must begin with 0, not descend, and end with the size of the
// dimension.
struct PerSequence {
  std::vector<std::int64_t> cu_seqlens;
  InnerSplit inner;
  bool operator==(const PerSequence&) const = default;
};

using Split = std::variant<Chunked, Balanced, Sized, HeadTail, Striped, Dealt, PerSequence>;

// What rank `index` of `parts` holds of `list`, in its local order; canonical. The split must be valid for
// the list, and 0 <= index < parts. Throws Infeasible where compose() does.
IndexSet split_part(const Split& split, const IndexSet& list, int parts, int index);

// [begin, end); empty when end == begin.
struct IndexRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const IndexRange&) const = default;
};

// The same for a plain range, without an allocation, when the split makes ranges of ranges: Chunked, Balanced
// and Sized do.
std::optional<IndexRange> split_range(const Split& split, IndexRange range, int parts, int index);

// Whether the split divides lists of one length alone (Sized, Dealt, and SizedEach, which asks it of each
// document), so that what earlier axes leave must have it on every rank.
bool fits_one_length(const Split& split);

// Throws InvalidInput when the split cannot divide the list, what earlier axes left of a dimension of
// `dim_size`, among `parts`: sizes that do not fit, cu_seqlens that do not end with the dimension, a block
// below 1. A document of which the list holds nothing, though it has elements, fits all sizes.
void validate_split(const Split& split, const IndexSet& list, std::int64_t dim_size, int parts);

// "" for Chunked, "balanced", "sizes:3/2", "head_tail", "striped:512", "dealt:64:0/1/1/0",
// "per_sequence:0/10/50:head_tail". A per_sequence without an inner split is Chunked within each document;
// "per_sequence:0/10/50:sizes:4/6:30/10" gives the sizes of each document, one document after the other.
std::string to_string(const Split& split);
// Also reads "chunked", and numbers such as 4Ki. Throws InvalidInput that quotes the text and lists the known
// splits.
Split parse_split(std::string_view text);

}  // namespace cp
