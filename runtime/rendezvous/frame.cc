#include "runtime/rendezvous/frame.h"

#include <cstdint>

#include "runtime/errors.h"

namespace cp::runtime {
namespace {

constexpr std::size_t kLengthBytes = 4;

}  // namespace

std::string encode_frame(const proto::RendezvousFrame& frame) {
  const std::size_t size = frame.ByteSizeLong();
  if (size > kMaxFrameBytes) {
    throw InvalidInput(
        str("the message has ", size, " bytes, but a frame holds ", kMaxFrameBytes, "; send it in parts"));
  }
  std::string bytes;
  bytes.reserve(kLengthBytes + size);
  for (std::size_t i = 0; i < kLengthBytes; ++i) bytes.push_back(static_cast<char>((size >> (8 * i)) & 0xff));
  frame.AppendToString(&bytes);
  return bytes;
}

void FrameParser::feed(std::string_view bytes) {
  buffer_.erase(0, begin_);
  begin_ = 0;
  buffer_.append(bytes);
}

std::optional<proto::RendezvousFrame> FrameParser::next() {
  if (buffered_bytes() < kLengthBytes) return std::nullopt;
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    size |= std::uint32_t{static_cast<unsigned char>(buffer_[begin_ + i])} << (8 * i);
  if (size > max_bytes_) {
    throw RendezvousError(str("the frame has ", size, " bytes, more than the limit of ", max_bytes_,
                              ": the peer does not speak the rendezvous protocol"));
  }
  if (buffered_bytes() < kLengthBytes + size) return std::nullopt;
  proto::RendezvousFrame frame;
  if (!frame.ParseFromArray(buffer_.data() + begin_ + kLengthBytes, static_cast<int>(size)))
    throw RendezvousError(str("a frame of ", size, " bytes cannot be read"));
  begin_ += kLengthBytes + size;
  return frame;
}

proto::RendezvousMessage parse_message(std::string_view bytes) {
  proto::RendezvousMessage message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      message.body_case() == proto::RendezvousMessage::BODY_NOT_SET) {
    throw RendezvousError(str("a message of ", bytes.size(), " bytes cannot be read"));
  }
  return message;
}

}  // namespace cp::runtime
