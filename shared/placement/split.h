// A Split is a rule by which one mesh axis divides the indices of a tensor dimension among its ranks.
//
// It divides a list of indices: the whole dimension, or what earlier axes left of it. So splits nest. Below,
// L is the length of the list and n the number of ranks of the axis. Of L = 10 over n = 4 ranks the regular
// splits make
//
//   Chunked      0..2  3..5  6..8  9                       3, 3, 3, 1
//   Balanced     0..2  3..5  6..7  8..9                    3, 3, 2, 2
//   HeadTail     0 1 9, 2 3 8, 4 7, 5 6                    pieces of 2, 2, 1, 1, 1, 1, 1, 1
//   Striped(1)   0 4 8, 1 5 9, 2 6, 3 7
//
// To add one, write a struct here, its index map and validation in split.cc, and its text in split_text.cc.
// Everything else follows from the index sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/placement/index_set.h"

namespace cp {

// Each rank gets ceil(L/n) indices; the last ones get less, or none. The rule of torch.chunk, and so of
// PyTorch's Shard.
struct Chunked {
  bool operator==(const Chunked&) const = default;
};

// The first L % n ranks get one index more than the others. The rule of NumPy's array_split, and of
// MindSpeed.
struct Balanced {
  bool operator==(const Balanced&) const = default;
};

// Explicit sizes, one for each rank of the axis. Their sum must be L.
struct Sized {
  std::vector<std::int64_t> sizes;
  bool operator==(const Sized&) const = default;
};

// The list is divided into 2n parts as Balanced does; rank r holds part r, then part 2n-1-r. (Others call it
// zigzag.) Under a causal mask every rank then has about the same work, since a cheap early part comes with
// an expensive late one.
struct HeadTail {
  bool operator==(const HeadTail&) const = default;
};

// Blocks of `block` indices, dealt in turn: rank r holds the blocks r, r+n, r+2n, and so on. The last block
// may be short.
struct Striped {
  std::int64_t block = 1;
  bool operator==(const Striped&) const = default;
};

// Blocks of `block` indices, dealt by a list: block i belongs to rank owners[i]. This balances work that no
// regular pattern balances. There must be an owner for each of the ceil(L/block) blocks; the last one may be
// short.
struct Dealt {
  std::int64_t block = 1;
  std::vector<std::int64_t> owners;
  bool operator==(const Dealt&) const = default;
};

// Explicit sizes within each document of a packed sequence: sizes[d][r] indices of document d belong to rank
// r, the first ones to rank 0. There must be a list for each document with a size for each rank, which add up
// to what the list that is split holds of the document. Use it for documents that some other program has
// split, such as the all_split_sizes of MindSpeed's packed_data_gather.
struct SizedEach {
  std::vector<std::vector<std::int64_t>> sizes;
  bool operator==(const SizedEach&) const = default;
};

// The splits that may act within each document of a packed sequence.
using InnerSplit = std::variant<Chunked, Balanced, HeadTail, Striped, SizedEach>;

// Packed documents, each of which is split on its own. A rank holds its parts of all documents, in the order
// of the documents. cu_seqlens = {0, 10, 50} means the documents [0, 10) and [10, 50): these are GLOBAL
// indices of the tensor dimension, whatever earlier axes left of it. The list must begin with 0, must not
// descend, and must end with the size of the dimension.
struct PerSequence {
  std::vector<std::int64_t> cu_seqlens;
  InnerSplit inner;
  bool operator==(const PerSequence&) const = default;
};

using Split = std::variant<Chunked, Balanced, Sized, HeadTail, Striped, Dealt, PerSequence>;

// The indices of `list` that rank `index` of `parts` ranks gets, in its local order, in canonical form. The
// split must be valid for the list (validate_split), and 0 <= index < parts. Throws Infeasible if compose()
// does.
IndexSet split_part(const Split& split, const IndexSet& list, int parts, int index);

// The indices [begin, end); none if end == begin.
struct IndexRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const IndexRange&) const = default;
};

// The same for a plain range, without an allocation. Gives a range only if the split turns every range into
// ranges, as Chunked, Balanced and Sized do; nothing otherwise.
std::optional<IndexRange> split_range(const Split& split, IndexRange range, int parts, int index);

// Whether the split divides lists of one length only. Then what earlier axes leave must have this length on
// every rank. True of Sized, of Dealt, and of SizedEach, which asks it of each document.
bool fits_one_length(const Split& split);

// Throws InvalidInput if the split cannot divide `list` among `parts` ranks; `list` is what earlier axes left
// of a dimension of `dim_size` indices. For example: sizes do not add up, cu_seqlens do not end with the
// dimension, a block is below 1. A document of which the list holds nothing, though the document has
// elements, fits any sizes.
void validate_split(const Split& split, const IndexSet& list, std::int64_t dim_size, int parts);

// The text of a split: "" for Chunked, "balanced", "sizes:3/2", "head_tail", "striped:512",
// "dealt:64:0/1/1/0", "per_sequence:0/10/50:head_tail". A per_sequence without an inner split is Chunked
// within each document. "per_sequence:0/10/50:sizes:4/6:30/10" gives the sizes of one document after the
// other.
std::string to_string(const Split& split);
// Also reads "chunked", and numbers such as 4Ki. Throws InvalidInput that quotes the text and lists the known
// splits.
Split parse_split(std::string_view text);

}  // namespace cp
