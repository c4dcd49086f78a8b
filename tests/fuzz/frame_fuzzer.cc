// Any bytes as what a stranger sends to the rendezvous server: frames and messages, or refused as a
// RendezvousError, the same however the bytes are cut into pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/stubs/logging.h>

#include "runtime/errors.h"
#include "runtime/rendezvous/frame.h"

namespace cp::runtime {
namespace {

constexpr std::size_t kLengthBytes = 4;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "frame_fuzzer: %s\n", what);
  std::abort();
}

struct Parsed {
  std::vector<std::string> frames;  // serialized
  bool refused = false;
};

Parsed parse(std::string_view bytes, std::size_t piece, std::size_t cap) {
  Parsed parsed;
  FrameParser parser(cap);
  try {
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      parser.feed(bytes.substr(at, piece));
      while (const auto frame = parser.next()) parsed.frames.push_back(frame->SerializeAsString());
      require(parser.buffered_bytes() <= cap + kLengthBytes + piece, "more than a frame is kept");
    }
  } catch (const RendezvousError&) {
    parsed.refused = true;
  }
  return parsed;
}

void fuzz(std::string_view bytes) {
  for (const std::size_t cap : {kMaxStrangerBytes, kMaxFrameBytes}) {
    const Parsed whole = parse(bytes, std::max<std::size_t>(1, bytes.size()), cap);
    const Parsed pieces = parse(bytes, 1 + bytes.size() % 7, cap);
    require(whole.refused == pieces.refused && whole.frames == pieces.frames, "pieces make a difference");
    for (const std::string& text : whole.frames) {
      proto::RendezvousFrame frame;
      require(frame.ParseFromString(text), "a frame that was read cannot be read again");
      const Parsed again = parse(encode_frame(frame), 3, kMaxFrameBytes);
      require(again.frames == std::vector<std::string>{text}, "a frame changed when it was written and read");
      try {
        parse_message(frame.message());
      } catch (const RendezvousError&) {
      }
    }
  }
}

}  // namespace
}  // namespace cp::runtime

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // it says of every text that is not UTF-8 what it is
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cp::runtime::fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
