#include "shared/transformer/short_layout.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"

namespace cp {
namespace {

using Names = std::pair<std::string_view, std::string_view>;  // short, whole

constexpr std::array<Names, 7> kShortKeys{{{"u", "ulysses_degree"},
                                           {"inner", "inner_ring"},
                                           {"vpp", "virtual_stages"},
                                           {"sp", "sequence_parallel"},
                                           {"mb", "micro_batch"},
                                           {"loss", "loss_chunks"},
                                           {"mlp", "mlp_chunks"}}};

bool is_balance(std::string_view word) {
  constexpr std::array<std::string_view, 6> kBalances{"contiguous", "head_tail",          "striped",
                                                      "cost",       "head_tail_exchange", "per_document"};
  return std::find(kBalances.begin(), kBalances.end(), word.substr(0, word.find(':'))) != kBalances.end();
}

bool is_recompute(std::string_view word) {
  return word == "selective" || word == "full" || word.starts_with("every:");
}

// The only key that has this value; "" where there is none, or several.
std::string_view key_of(std::string_view word) {
  const std::vector<std::string>& strategies = strategy_names();
  if (std::find(strategies.begin(), strategies.end(), word) != strategies.end()) return "strategy";
  if (is_balance(word)) return "balance";
  if (is_recompute(word)) return "recompute";
  if (word == "ring_inner" || word == "ulysses_inner") return "axis_order";
  for (const AxisOrder order : axis_orders()) {
    if (word == to_string(order)) return "order";
  }
  return "";
}

std::string item_with_key(std::string_view item) {
  const std::size_t equals = item.find('=');
  const std::string_view key = trim(item.substr(0, equals));
  if (equals == std::string_view::npos) {
    const std::string_view found = key_of(key);
    return found.empty() ? std::string(item) : str(found, "=", key);
  }
  for (const auto& [brief, whole] : kShortKeys) {
    if (key == brief) return str(whole, item.substr(equals));
  }
  return std::string(item);
}

}  // namespace

std::string short_text(const LayoutItem& item) {
  if (item.key == "dp_shard") return str("dp=", item.value);
  if (key_of(item.value) == item.key) return item.value;
  for (const auto& [brief, whole] : kShortKeys) {
    if (item.key == whole) return str(brief, "=", item.value);
  }
  return str(item);
}

std::vector<LayoutItem> telling_items(const ParallelLayout& layout) {
  std::vector<LayoutItem> items = items_of(layout);
  if (layout.cp > 1 && layout.strategy.ulysses_degree == layout.cp)
    std::erase(items, LayoutItem{"balance", "contiguous"});
  return items;
}

std::string short_text(const ParallelLayout& layout) {
  std::vector<std::string> texts;
  for (const LayoutItem& item : telling_items(layout)) texts.push_back(short_text(item));
  return join(texts);
}

std::string with_layout_keys(std::string_view text) {
  std::vector<std::string> items;
  for (const std::string_view item : split(text, ',')) items.push_back(item_with_key(item));
  return join(items);
}

}  // namespace cp
