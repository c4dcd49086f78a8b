// The framing of the rendezvous: length (u32, little-endian), then a proto::RendezvousFrame of that many
// bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/rendezvous/rendezvous.pb.h"

namespace cp::runtime {

// Chosen: no length that a peer claims can make the other side allocate more than this.
constexpr std::size_t kMaxFrameBytes = std::size_t{1} << 20;
// The limit for a peer that has not proved the token yet. Chosen: a hello and its proof are far shorter.
constexpr std::size_t kMaxStrangerBytes = 4096;
// The limit of a stored or gathered value. The 16 KiB are for what an answer has beside it, so that it fits a
// frame.
constexpr std::size_t kMaxValueBytes = kMaxFrameBytes - 16384;
constexpr std::size_t kMaxKeyBytes = 1024;  // chosen

// Length and frame. Throws InvalidInput beyond kMaxFrameBytes.
std::string encode_frame(const proto::RendezvousFrame& frame);

// Bytes in, in any pieces; frames out. Holds no more than one frame and the last piece: a length beyond the
// cap is refused before anything is allocated for it.
class FrameParser {
 public:
  explicit FrameParser(std::size_t max_bytes = kMaxFrameBytes) : max_bytes_(max_bytes) {}
  void set_max_bytes(std::size_t max_bytes) { max_bytes_ = max_bytes; }

  void feed(std::string_view bytes);
  // The next whole frame; nothing until more bytes come. To be called until it returns nothing, after each
  // feed. Throws RendezvousError for a length beyond the cap and for bytes that are no frame; the parser is
  // of no further use then.
  std::optional<proto::RendezvousFrame> next();

  std::size_t buffered_bytes() const { return buffer_.size() - begin_; }

 private:
  std::size_t max_bytes_;
  std::string buffer_;
  std::size_t begin_ = 0;  // of what is not parsed yet
};

// The message of a frame. Throws RendezvousError when it is none.
proto::RendezvousMessage parse_message(std::string_view bytes);

}  // namespace cp::runtime
