// A layout in few letters, for tables: "cp=16,dp=4,ring,u=4,head_tail,selective,loss=4".
//
// A value that only one key can have stands without it (strategies, balances, recomputation, orders), and
// long keys have short names:
//   dp  dp_shard          u    ulysses_degree   inner  inner_ring   vpp  virtual_stages   sp  sequence_parallel
//   mb  micro_batch       loss loss_chunks      mlp    mlp_chunks
// Whoever reads a layout (parse_parallel_layout, --fix, --explain) reads this, too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared/transformer/parallel_layout.h"

namespace cp {

// What to_string(layout) says; parse_parallel_layout gives the same layout.
std::string short_text(const ParallelLayout& layout);

// The items of a layout of which its short text is made: of Ulysses over all cp ranks the contiguous split
// goes without saying. With the text of one, for tables that leave out what all their layouts have.
std::vector<LayoutItem> telling_items(const ParallelLayout& layout);
std::string short_text(const LayoutItem& item);

// The text with the keys that a short one leaves out or abbreviates; all else, also what is no layout, stays
// as it is.
std::string with_layout_keys(std::string_view text);

}  // namespace cp
