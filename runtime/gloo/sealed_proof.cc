#include "runtime/gloo/sealed_proof.h"

namespace cp::runtime {
namespace {

// 8 bytes; the last one is the version of the exchange.
constexpr std::string_view kMagic = "cpdata\n1";

void append_number(std::string& out, std::uint64_t value, int bytes = 8) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

// Appends the length too, so that no two different sequences of texts give the same bytes.
void append_text(std::string& out, std::string_view text) {
  append_number(out, text.size());
  out.append(text);
}

Rank rank_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return static_cast<Rank>(value);
}

}  // namespace

std::string sealed_key(std::string_view token, std::string_view job_id, std::string_view group,
                       std::string_view ticket) {
  std::string text;
  for (const std::string_view part : {std::string_view("cpsim data connections"), job_id, group, ticket})
    append_text(text, part);
  return hmac_sha256(token, text);
}

std::string sealed_proof(const std::string& key, SealedEnd by, const SealedLink& link) {
  std::string text;
  append_text(text, by == SealedEnd::connects ? "connects" : "listens");
  append_number(text, static_cast<std::uint64_t>(link.connects));
  append_number(text, static_cast<std::uint64_t>(link.listens));
  append_text(text, link.nonce_of_connecting);
  append_text(text, link.nonce_of_listening);
  return hmac_sha256(key, text);
}

std::string sealed_hello(const SealedLink& link) {
  std::string hello(kMagic);
  append_number(hello, static_cast<std::uint32_t>(link.connects), 4);
  append_number(hello, static_cast<std::uint32_t>(link.listens), 4);
  return hello + link.nonce_of_connecting;
}

std::optional<SealedLink> parse_sealed_hello(std::string_view bytes) {
  if (bytes.size() != kHelloBytes || !bytes.starts_with(kMagic)) return std::nullopt;
  SealedLink link;
  link.connects = rank_at(bytes, kMagic.size());
  link.listens = rank_at(bytes, kMagic.size() + 4);
  link.nonce_of_connecting = bytes.substr(kMagic.size() + 8);
  return link;
}

}  // namespace cp::runtime
