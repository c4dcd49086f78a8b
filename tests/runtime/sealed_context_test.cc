// Gloo over a connection whose other end is played byte by byte: messages that break off, that nobody awaits,
// and of another size than what they are for.
#include <gtest/gtest.h>

#ifdef CP_HAVE_GLOO
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <numeric>
#include <span>
#include <string>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "runtime/gloo/gloo_communicator.h"
#include "runtime/gloo/sealed_context.h"
#include "shared/base/checksum.h"

namespace cp {
namespace {

using runtime::Descriptor;
using runtime::PayloadSizeError;

constexpr std::chrono::milliseconds kForEver = std::chrono::hours(1);
constexpr std::uint64_t kSlot = 4711;
constexpr std::size_t kReceivedBytes = 100;  // that are received

// The two ends of a connection over loopback.
std::array<Descriptor, 2> connection() {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.get(), raw, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), raw, &size), 0);
  Descriptor connecting(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(connecting.get(), raw, size), 0);
  return {std::move(connecting), Descriptor(accept(listener.get(), nullptr, nullptr))};
}

class GlooPeer : public ::testing::Test {
 protected:
  // As gloo::transport::tcp::Op has them.
  enum Opcode : std::uint64_t { kSend = 1, kSendReady = 2, kRecvReady = 3 };

  void SetUp() override {
    auto [here, there] = connection();
    peer_ = std::move(there);
    here_ = Descriptor(dup(here.get()));
    std::vector<Descriptor> sockets(2);
    sockets[1] = std::move(here);
    context_ = runtime::make_gloo_context(runtime::make_gloo_thread(), 0, std::move(sockets), kForEver,
                                          std::make_shared<std::atomic<std::uint64_t>>(0), passed_);
    buffer_ = context_->createUnboundBuffer(memory_.data(), kReceivedBytes);
    buffer_->recv(1, kSlot);
    std::array<std::uint64_t, 6> said{};
    ASSERT_EQ(recv(peer_.get(), said.data(), sizeof said, MSG_WAITALL), ssize_t{sizeof said});
    ASSERT_EQ(said[1], kRecvReady);
  }

  void say(Opcode opcode, std::uint64_t slot, std::size_t length, std::size_t sent) const {
    const std::size_t payload = opcode == kSend ? length : 0;
    const std::array<std::uint64_t, 6> preamble = {sizeof preamble + payload, opcode, slot, 0, length, 0};
    ASSERT_EQ(send(peer_.get(), preamble.data(), sizeof preamble, MSG_NOSIGNAL), ssize_t{sizeof preamble});
    std::string bytes(sent, 'x');
    std::iota(bytes.begin(), bytes.end(), '\0');
    ASSERT_EQ(send(peer_.get(), bytes.data(), sent, MSG_NOSIGNAL), static_cast<ssize_t>(sent));
  }

  void wait_until_all_is_read() const {
    for (int waiting = 1; waiting > 0; usleep(1000)) ASSERT_EQ(ioctl(here_.get(), FIONREAD, &waiting), 0);
  }

  // The payload of a message that arrives, as say() makes it, or is sent.
  static std::uint64_t checksum_of(std::size_t size) {
    std::string bytes(size, 'x');
    std::iota(bytes.begin(), bytes.end(), '\0');
    return fold_checksum(0, checksum(std::as_bytes(std::span(bytes))));
  }

  Descriptor peer_, here_;
  std::shared_ptr<runtime::PassedPayloads> passed_ = std::make_shared<runtime::PassedPayloads>(2);
  std::shared_ptr<gloo::Context> context_;
  std::array<char, 2 * kReceivedBytes> memory_{};
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

TEST_F(GlooPeer, AMessageOfTheRightSizeArrives) {
  say(kSendReady, kSlot, kReceivedBytes, 0);
  say(kSend, kSlot, kReceivedBytes, kReceivedBytes);
  EXPECT_TRUE(buffer_->waitRecv());
  EXPECT_EQ(memory_[kReceivedBytes - 1], char{kReceivedBytes - 1});
  EXPECT_EQ(passed_->of(1).received.odd, checksum_of(kReceivedBytes));
  EXPECT_EQ(passed_->of(1).received.even, 0u);
  EXPECT_EQ(passed_->of(1).sent.odd, 0u);
}

// The peer reads little at a time, so that the kernel takes little at a time, and far more than is added up
// at a time.
TEST_F(GlooPeer, WhatIsSentIsSummedAsItPasses) {
  constexpr std::size_t kSent = 5'000'001;
  std::string bytes(kSent, 'x');
  std::iota(bytes.begin(), bytes.end(), '\0');
  const auto sending = context_->createUnboundBuffer(bytes.data(), kSent);
  sending->send(1, kSlot + 1);
  std::array<std::uint64_t, 6> said{};
  ASSERT_EQ(recv(peer_.get(), said.data(), sizeof said, MSG_WAITALL), ssize_t{sizeof said});
  ASSERT_EQ(said[1], kSendReady);
  say(kRecvReady, kSlot + 1, kSent, 0);
  ASSERT_EQ(recv(peer_.get(), said.data(), sizeof said, MSG_WAITALL), ssize_t{sizeof said});
  ASSERT_EQ(said[1], kSend);
  std::string got(kSent, 'y');
  for (std::size_t begin = 0; begin < kSent; begin += 77'777) {
    const std::size_t part = std::min<std::size_t>(77'777, kSent - begin);
    ASSERT_EQ(recv(peer_.get(), got.data() + begin, part, MSG_WAITALL), static_cast<ssize_t>(part));
  }
  EXPECT_EQ(got, bytes);
  sending->waitSend();
  EXPECT_EQ(passed_->of(1).sent.even, checksum_of(kSent));
}

void expect_other_size(gloo::transport::UnboundBuffer& buffer, std::size_t sent) {
  try {
    buffer.waitRecv();
    ADD_FAILURE() << "arrived";
  } catch (const PayloadSizeError& error) {
    EXPECT_EQ(error.sender, 1);
    EXPECT_EQ(error.sent_bytes, sent);
    EXPECT_EQ(error.expected_bytes, kReceivedBytes);
  }
}

TEST_F(GlooPeer, ALongerMessageIsAnErrorOfWhoReceivesIt) {
  say(kSendReady, kSlot, kReceivedBytes + 1, 0);
  say(kSend, kSlot, kReceivedBytes + 1, kReceivedBytes + 1);
  expect_other_size(*buffer_, kReceivedBytes + 1);
  EXPECT_EQ(memory_[0], 0);  // nothing was written
}

TEST_F(GlooPeer, AShorterMessageIsOneToo) {
  say(kSendReady, kSlot, kReceivedBytes - 1, 0);
  say(kSend, kSlot, kReceivedBytes - 1, kReceivedBytes - 1);
  expect_other_size(*buffer_, kReceivedBytes - 1);
}

TEST_F(GlooPeer, AMessageThatNobodyAwaitsIsAnErrorOfAllWhoWait) {
  say(kSend, kSlot + 1, 8, 8);
  EXPECT_THROW(buffer_->waitRecv(), gloo::IoException);
}

TEST_F(GlooPeer, WhoWaitsForTheRestOfAMessageIsToldThatThePeerIsGone) {
  say(kSendReady, kSlot, kReceivedBytes, 0);
  say(kSend, kSlot, kReceivedBytes, kReceivedBytes / 2);
  peer_.reset();
  EXPECT_THROW(buffer_->waitRecv(), gloo::IoException);
}

// As GlooCommunicator::abort() does it.
TEST_F(GlooPeer, WhoWaitsForTheRestOfAMessageIsToldOfAnAbort) {
  say(kSendReady, kSlot, kReceivedBytes, 0);
  say(kSend, kSlot, kReceivedBytes, kReceivedBytes / 2);
  char other = 0;
  wait_until_all_is_read();
  const auto aborting = context_->createUnboundBuffer(&other, 1);
  EXPECT_THROW(aborting->waitRecv(std::chrono::milliseconds(1)), gloo::IoException);
  EXPECT_THROW(buffer_->waitRecv(), gloo::IoException);
}

}  // namespace
}  // namespace cp
#endif
