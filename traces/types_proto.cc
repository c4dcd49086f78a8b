#include "traces/types_proto.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "traces/enum_table.h"

namespace cp {
namespace {

constexpr EnumTable<DType, proto::DType, 5> kDTypes = {{{DType::f32, proto::f32},
                                                        {DType::f16, proto::f16},
                                                        {DType::bf16, proto::bf16},
                                                        {DType::i32, proto::i32},
                                                        {DType::i64, proto::i64}}};
constexpr EnumTable<ReduceOp, proto::ReduceOp, 5> kReduceOps = {{{ReduceOp::sum, proto::sum},
                                                                 {ReduceOp::avg, proto::avg},
                                                                 {ReduceOp::min, proto::min},
                                                                 {ReduceOp::max, proto::max},
                                                                 {ReduceOp::product, proto::product}}};

// Length of the well-formed character at the front (Unicode, table 3-7), 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool overlong = lead == 0xe0 && byte(1) < 0xa0, surrogate = lead == 0xed && byte(1) > 0x9f;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool overlong = lead == 0xf0 && byte(1) < 0x90, too_large = lead == 0xf4 && byte(1) > 0x8f;
    return continues(1) && continues(2) && continues(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

}  // namespace

proto::DType to_proto(DType dtype) { return kDTypes.to_proto(dtype); }
proto::ReduceOp to_proto(ReduceOp op) { return kReduceOps.to_proto(op); }

proto::Digest to_proto(const Digest& digest) {
  proto::Digest message;
  message.set_high(digest.high);
  message.set_low(digest.low);
  return message;
}

proto::Group to_proto(const Group& group) {
  proto::Group message;
  message.set_name(require_utf8(group.name, FieldPath("group.name")));
  message.mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
  message.set_copy_engine(group.copy_engine);
  return message;
}

DType from_proto(proto::DType dtype, const FieldPath& path) { return kDTypes.from_proto(dtype, path); }
ReduceOp from_proto(proto::ReduceOp op, const FieldPath& path) { return kReduceOps.from_proto(op, path); }

Digest from_proto(const proto::Digest& digest) { return {digest.high(), digest.low()}; }

Group from_proto(const proto::Group& group, const FieldPath& path) {
  for (int i = 0; i < group.ranks_size(); ++i) {
    FieldPath(path, "ranks", i).require_range(group.ranks(i), 0, std::numeric_limits<Rank>::max());
  }
  return {group.name(), {group.ranks().begin(), group.ranks().end()}, group.copy_engine()};
}

const std::string& require_utf8(const std::string& text, const FieldPath& path) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(std::string_view(text).substr(at));
    if (length == 0) {
      constexpr std::string_view kHex = "0123456789abcdef";
      std::string quoted;
      for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        quoted +=
            byte >= 0x20 && byte < 0x7f ? std::string(1, c) : str("\\x", kHex[byte >> 4], kHex[byte & 15]);
      }
      path.fail("is '", quoted, "', which is not UTF-8 at byte ", at);
    }
    at += length;
  }
  return text;
}

}  // namespace cp
