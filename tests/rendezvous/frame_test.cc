#include "runtime/rendezvous/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "runtime/errors.h"
#include "tests/rendezvous/test_job.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using runtime::FrameParser;
using ::testing::HasSubstr;

proto::RendezvousFrame frame_of(const std::string& text) {
  proto::RendezvousFrame frame;
  frame.set_message(text);
  return frame;
}

TEST(Frame, LengthIsLittleEndianAndCountsTheFrameAlone) {
  // A frame of one field of 3 bytes: tag, length, text.
  EXPECT_EQ(runtime::encode_frame(frame_of("abc")), std::string("\x05\0\0\0\x12\x03", 6) + "abc");
}

RC_GTEST_PROP(Frame, ComesOutWhateverPiecesItCameInBy, ()) {
  const auto texts =
      pick("texts", rc::gen::container<std::vector<std::string>>(rc::gen::arbitrary<std::string>()));
  std::string bytes;
  for (const std::string& text : texts) bytes += runtime::encode_frame(frame_of(text));
  FrameParser parser;
  std::vector<std::string> out;
  while (!bytes.empty()) {
    const auto size = pick("size", rc::gen::inRange<std::size_t>(1, bytes.size() + 1));
    parser.feed(bytes.substr(0, size));
    bytes.erase(0, size);
    while (const auto frame = parser.next()) out.push_back(frame->message());
  }
  RC_ASSERT(out == texts);
  RC_ASSERT(parser.buffered_bytes() == 0U);
}

RC_GTEST_PROP(Frame, GarbageIsAnErrorOrWaitsForMore, (const std::string& garbage)) {
  FrameParser parser;
  parser.feed(garbage);
  try {
    while (const auto frame = parser.next()) runtime::parse_message(frame->message());
  } catch (const runtime::RendezvousError&) {
  }
  RC_ASSERT(parser.buffered_bytes() <= garbage.size());
}

TEST(Frame, HalfAFrameIsNothingYet) {
  const std::string bytes = runtime::encode_frame(frame_of("abc"));
  FrameParser parser;
  for (const char byte : bytes.substr(0, bytes.size() - 1)) {
    parser.feed({&byte, 1});
    EXPECT_FALSE(parser.next());
  }
  parser.feed(bytes.substr(bytes.size() - 1));
  EXPECT_TRUE(parser.next());
}

TEST(Frame, LengthsBeyondTheCapAreRefusedBeforeTheBytesCome) {
  FrameParser parser;
  parser.feed("\xff\xff\xff\xff");
  EXPECT_THAT(testing::error_of([&] { parser.next(); }),
              HasSubstr("rendezvous: the frame has 4294967295 bytes, more than the limit of 1048576"));
  FrameParser small(16);
  small.feed(std::string("\x11\0\0\0", 4));
  EXPECT_THROW(small.next(), runtime::RendezvousError);
  FrameParser exact(16);
  exact.feed(std::string("\x10\0\0\0", 4));
  EXPECT_FALSE(exact.next());
}

TEST(Frame, TooLongAMessageIsNotSent) {
  EXPECT_THROW(runtime::encode_frame(frame_of(std::string(runtime::kMaxFrameBytes, 'x'))), InvalidInput);
}

TEST(Frame, MessagesWithoutContentAreRefused) {
  EXPECT_THROW(runtime::parse_message(""), runtime::RendezvousError);
  EXPECT_THROW(runtime::parse_message("\xff\xff"), runtime::RendezvousError);
}

}  // namespace
}  // namespace cp
