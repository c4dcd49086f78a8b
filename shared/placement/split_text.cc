// The text form of splits.
#include <optional>
#include <type_traits>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/placement/split.h"

namespace cp {
namespace {

constexpr std::string_view kKnownSplits =
    "balanced, head_tail (or zigzag), striped:BLOCK, sizes:N/N/..., dealt:BLOCK:RANK/RANK/..., "
    "per_sequence:0/N/.../N[:SPLIT], where SPLIT may be sizes:N/N/...:N/N/... with one list for each "
    "document, or none for "
    "torch.chunk's rule";

// "name:rest" → {name, rest}; no rest when there is no colon.
std::pair<std::string_view, std::optional<std::string_view>> cut_at_colon(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

[[noreturn]] void reject_split(std::string_view text, std::string_view reason) {
  throw InvalidInput(str("cannot read the split '", text, "': ", reason, "; known: ", kKnownSplits));
}

std::vector<std::int64_t> parse_list(std::string_view list, std::string_view text) {
  if (trim(list).empty()) reject_split(text, "it needs a list of numbers");
  return parse_ints(list, '/', str("number in the split '", text, "'"));
}

// "4/6:30/10": a list for each document; "" for no documents.
SizedEach parse_sizes_of_each(std::string_view lists, std::string_view text) {
  SizedEach each;
  if (lists.empty()) return each;
  for (const std::string_view list : split(lists, ':')) each.sizes.push_back(parse_list(list, text));
  return each;
}

PerSequence parse_per_sequence(std::string_view argument, std::string_view text) {
  const auto [cu_seqlens, inner] = cut_at_colon(argument);
  const std::string_view within = trim(inner.value_or(""));
  if (constexpr std::string_view kSizes = "sizes:"; within.starts_with(kSizes))
    return {parse_list(cu_seqlens, text), parse_sizes_of_each(within.substr(kSizes.size()), text)};
  const auto as_inner = [&](const auto& rule) -> InnerSplit {
    if constexpr (std::is_constructible_v<InnerSplit, decltype(rule)>) {
      return rule;
    } else {
      reject_split(text, str("'", within, "' cannot act within a document"));
    }
  };
  return {parse_list(cu_seqlens, text), std::visit(as_inner, parse_split(within))};
}

Dealt parse_dealt(std::string_view argument, std::string_view text) {
  const auto [block, owners] = cut_at_colon(argument);
  if (!owners) reject_split(text, "it needs a block and a list of owners, for example dealt:64:0/1/1/0");
  const std::int64_t size = parse_int(block, str("block of the split '", text, "'"));
  return {size, owners->empty() ? std::vector<std::int64_t>{} : parse_list(*owners, text)};
}

std::string text_of(const Chunked&) { return ""; }
std::string text_of(const Balanced&) { return "balanced"; }
std::string text_of(const Sized& sized) { return str("sizes:", join(sized.sizes, "/")); }
std::string text_of(const HeadTail&) { return "head_tail"; }
std::string text_of(const Striped& striped) { return str("striped:", striped.block); }
std::string text_of(const Dealt& dealt) { return str("dealt:", dealt.block, ":", join(dealt.owners, "/")); }
std::string text_of(const SizedEach& each) {
  std::vector<std::string> lists;
  for (const std::vector<std::int64_t>& sizes : each.sizes) lists.push_back(join(sizes, "/"));
  return str("sizes:", join(lists, ":"));
}
std::string text_of(const PerSequence& documents) {
  const std::string inner = std::visit([](const auto& rule) { return text_of(rule); }, documents.inner);
  return str("per_sequence:", join(documents.cu_seqlens, "/"), inner.empty() ? "" : ":", inner);
}

}  // namespace

std::string to_string(const Split& split) {
  return std::visit([](const auto& rule) { return text_of(rule); }, split);
}

Split parse_split(std::string_view text) {
  const auto [name, argument] = cut_at_colon(trim(text));
  if (name == "striped" || name == "sizes" || name == "dealt" || name == "per_sequence") {
    if (!argument) reject_split(text, str("'", name, "' needs an argument"));
    if (name == "striped") return Striped{parse_int(*argument, str("block of the split '", text, "'"))};
    if (name == "sizes") return Sized{parse_list(*argument, text)};
    if (name == "dealt") return parse_dealt(*argument, text);
    return parse_per_sequence(*argument, text);
  }
  const bool is_chunked = name.empty() || name == "chunked";
  const bool is_head_tail = name == "head_tail" || name == "zigzag";  // ring-flash-attention's word
  if (!is_chunked && name != "balanced" && !is_head_tail) reject_split(text, "there is no such split");
  if (argument) reject_split(text, str("'", name, "' has no argument"));
  if (name == "balanced") return Balanced{};
  if (is_head_tail) return HeadTail{};
  return Chunked{};
}

}  // namespace cp
