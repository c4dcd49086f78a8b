#include "sim/fuzz/judge_messages.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

namespace cp::sim {
namespace {

// A plain header, then the finding as protobuf, then the text. Both ends are the same program.
struct Header {
  MessageKind kind;
  bool has_finding, ran;
  std::uint64_t number;
  Digest digest;
  std::uint32_t finding_bytes, text_bytes;
};

}  // namespace

void write_message(int pipe, const JudgeMessage& message) {
  const std::string finding = message.judgement.finding ? message.judgement.finding->SerializeAsString() : "";
  const Header header{message.kind,
                      message.judgement.finding.has_value(),
                      message.judgement.ran,
                      message.number,
                      message.judgement.digest,
                      static_cast<std::uint32_t>(finding.size()),
                      static_cast<std::uint32_t>(message.text.size())};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes += finding + message.text;
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = write(pipe, bytes.data() + sent, bytes.size() - sent);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
}

std::optional<JudgeMessage> take_message(std::string& bytes) {
  Header header{};
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::size_t size = sizeof header + header.finding_bytes + header.text_bytes;
  if (bytes.size() < size) return std::nullopt;
  JudgeMessage message{
      header.kind, header.number, {}, bytes.substr(sizeof header + header.finding_bytes, header.text_bytes)};
  message.judgement.digest = header.digest;
  message.judgement.ran = header.ran;
  if (header.has_finding) {
    message.judgement.finding.emplace();
    message.judgement.finding->ParseFromString(bytes.substr(sizeof header, header.finding_bytes));
  }
  bytes.erase(0, size);
  return message;
}

}  // namespace cp::sim
