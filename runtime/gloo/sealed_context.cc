#include "runtime/gloo/sealed_context.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <netinet/in.h>
#include <span>
#include <sys/socket.h>
#include <utility>

#include <gloo/common/logging.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include "shared/base/checksum.h"
#include "shared/base/error.h"

#ifdef __SANITIZE_THREAD__
// A buffer's destructor waits, by a reference count, until nobody uses the buffer. The thread sanitizer sees
// the part of this that happens in this file, but not the part inside Gloo's library, which was built without
// it; so it reports a race that does not exist.
//
// The sanitizer's library asks the program for this function, so it is not hidden as all others are.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_suppressions();  // NOLINT: the sanitizer's name
extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport::tcp::UnboundBuffer::~UnboundBuffer\n";
}
#endif

namespace cp::runtime {
namespace {

namespace tcp = gloo::transport::tcp;

// The number of bytes that are taken from the kernel at a time, and then added up while the core's cache
// still has them. Derived: a quarter of the smallest second-level caches of servers (512 KiB). A message that
// is sent is added up at once instead, because sending it in such parts would wake the receiver for each
// part.
constexpr std::size_t kSummedBytes = std::size_t{128} << 10;

void fold_into(PassedPayloads::Checksums& checksums, std::uint64_t slot, std::uint64_t checksum) {
  std::uint64_t& sum = slot % 2 == 0 ? checksums.even : checksums.odd;
  sum = fold_checksum(sum, checksum);
}

class SealedPair final : public tcp::Pair {
 public:
  // Gloo's constructor listens, at the address of make_gloo_thread(), which nobody reaches; so its loop has
  // seen nothing of that socket, and forgets it when it is closed. The lock keeps the loop out until the
  // connection is in its place.
  SealedPair(tcp::Context* context, tcp::Device* device, int peer, std::chrono::milliseconds timeout,
             Descriptor socket, ArrivedBytes arrived, PassedPayloads* passed)
      : tcp::Pair(context, device, peer, timeout),
        arrived_(std::move(arrived)),
        passed_(passed),
        connection_(passed == nullptr ? nullptr : &passed->of(static_cast<std::size_t>(peer))) {
    const std::lock_guard lock(m_);
    CP_INVARIANT(state_ == LISTENING, "somebody connected to a pair of Gloo's that nobody can reach");
    ::close(fd_);
    fd_ = socket.release();
    try {
      handleConnected();
    } catch (...) {  // closed by the peer, so that it has no address: nothing that the loop knows
      ::close(std::exchange(fd_, -1));
      throw;
    }
  }

 protected:
  void handleReadWrite(int events) override {
    try {
      tcp::Pair::handleReadWrite(events);
    } catch (const std::exception& error) {
      if (ex_ == nullptr) signalException(GLOO_ERROR_MSG(error.what()));
    }
  }

  // The same as Gloo's, but it also checks the size of the message, counts its bytes and takes its checksum.
  bool read() override {
    if (state_ == CLOSED) return false;
    gloo::NonOwningPtr<tcp::UnboundBuffer> buffer;
    for (;;) {
      iovec into = {.iov_base = nullptr, .iov_len = 0};
      // If the message is too long this throws, but by then it has found the receive.
      try {
        if (prepareRead(rx_, buffer, into) < 0) return false;
      } catch (const gloo::EnforceNotMet&) {
        if (!refuse_other_size()) throw;
        return false;
      }
      if (refuse_other_size()) return false;
      if (into.iov_len == 0) break;
      const bool is_summed = passed_ != nullptr && is_payload(rx_) && rx_.nread >= sizeof(rx_.preamble);
      if (is_summed) into.iov_len = std::min(into.iov_len, kSummedBytes);
      const ssize_t got = ::recv(fd_, into.iov_base, into.iov_len, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return false;
      if (got <= 0) {
        signalException(got == 0 ? GLOO_ERROR_MSG("Connection closed by peer ", peer_.str())
                                 : GLOO_ERROR_MSG("Read error ", peer_.str(), ": ", std::strerror(errno)));
        return false;
      }
      rx_.nread += static_cast<std::size_t>(got);
      arrived_->fetch_add(static_cast<std::uint64_t>(got), std::memory_order_relaxed);
      if (is_summed)
        incoming_.add({static_cast<const std::byte*>(into.iov_base), static_cast<std::size_t>(got)});
    }
    if (passed_ != nullptr && is_payload(rx_))
      fold_into(connection_->received, rx_.preamble.slot, incoming_.take());
    readComplete(buffer);
    return true;
  }

  // Messages are written one after the other, each by as many calls as the kernel needs to take it. Its
  // checksum is taken at the first of these calls.
  bool write(tcp::Op& op) override {
    if (passed_ != nullptr && is_payload(op) && !is_begun_) {
      if (const gloo::NonOwningPtr<tcp::UnboundBuffer> buffer(op.ubuf); buffer) {
        const auto* data = static_cast<const std::byte*>(buffer->ptr) + op.offset;
        fold_into(connection_->sent, op.preamble.slot,
                  passed_->checksum_of({data, op.nbytes}, op.preamble.slot));
        is_begun_ = true;
      }
    }
    const bool is_written = tcp::Pair::write(op);
    if (is_written && is_payload(op)) is_begun_ = false;
    return is_written;
  }

  // Gloo tells an error to all who wait for the pair, except to the one whose message has begun to arrive. So
  // the receive of that message is put back among those that wait.
  void changeState(state next) noexcept override {
    if (next == CLOSED && ex_ != nullptr && rx_.ubuf) {
      const auto slot = rx_.preamble.slot;
      localPendingRecv_[slot].emplace_back(std::exchange(rx_.ubuf, {}), rx_.offset, rx_.nbytes);
      return signalException(std::exchange(ex_, nullptr));  // comes here again
    }
    tcp::Pair::changeState(next);
  }

 private:
  static bool is_payload(tcp::Op& op) { return op.getOpcode() == tcp::Op::SEND_UNBOUND_BUFFER; }

  bool refuse_other_size() {
    const bool has_receive = rx_.nread >= sizeof(rx_.preamble) && is_payload(rx_) && bool(rx_.ubuf);
    if (!has_receive || rx_.preamble.length == rx_.nbytes) return false;
    if (ex_ == nullptr) {
      signalException(std::make_exception_ptr(PayloadSizeError(rank_, rx_.preamble.length, rx_.nbytes)));
    }
    return true;
  }

  const ArrivedBytes arrived_;
  PassedPayloads* const passed_;  // null: nobody wants checksums
  PassedPayloads::Connection* const connection_;
  ChecksumOfParts incoming_;  // of the message that arrives
  bool is_begun_ = false;     // the first message that is to be written has been added up
};

class SealedTransport final : public tcp::Context {
 public:
  SealedTransport(std::shared_ptr<tcp::Device> device, int index, std::vector<Descriptor> sockets,
                  ArrivedBytes arrived, std::shared_ptr<PassedPayloads> passed)
      : tcp::Context(std::move(device), index, static_cast<int>(sockets.size())),
        sockets_(std::move(sockets)),
        arrived_(std::move(arrived)),
        passed_(std::move(passed)) {}

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    const auto place = static_cast<std::size_t>(peer);
    auto& pair = pairs_.at(place);
    pair = std::make_unique<SealedPair>(this, device_.get(), peer, getTimeout(),
                                        std::move(sockets_.at(place)), arrived_, passed_.get());
    return pair;
  }

 private:
  std::vector<Descriptor> sockets_;
  const ArrivedBytes arrived_;
  const std::shared_ptr<PassedPayloads> passed_;
};

class SealedContext final : public gloo::Context {
 public:
  SealedContext(const std::shared_ptr<tcp::Device>& device, int index, std::vector<Descriptor> sockets,
                std::chrono::milliseconds timeout, ArrivedBytes arrived,
                std::shared_ptr<PassedPayloads> passed)
      : gloo::Context(index, static_cast<int>(sockets.size())) {
    setTimeout(timeout);
    auto transport = std::make_shared<SealedTransport>(device, index, std::move(sockets), std::move(arrived),
                                                       std::move(passed));
    transport->setTimeout(timeout);
    for (int peer = 0; peer < size; ++peer) {
      if (peer != index) transport->createPair(peer);
    }
    device_ = device;
    transportContext_ = std::move(transport);
  }
};

}  // namespace

std::uint64_t PassedPayloads::checksum_of(std::span<const std::byte> payload, std::uint64_t slot) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = known_.try_emplace({payload.data(), payload.size(), slot}, 0);
  if (is_new) known->second = checksum(payload);
  return known->second;
}

void PassedPayloads::clear() {
  connections_.assign(connections_.size(), {});
  known_.clear();
}

PayloadSizeError::PayloadSizeError(std::int32_t from, std::size_t sent, std::size_t expected)
    : gloo::IoException(str("member ", from, " sent ", sent, " bytes, but ", expected, " were expected")),
      sender(from),
      sent_bytes(sent),
      expected_bytes(expected) {}

// Gloo's pairs must have an address to listen at, before they get the connection that was made already. TCP
// has no broadcast: Linux lets a socket listen at a broadcast address, but nobody can connect to it.
std::shared_ptr<gloo::transport::Device> make_gloo_thread() {
  tcp::attr attributes;
  attributes.ai_family = AF_INET;
  attributes.ai_socktype = SOCK_STREAM;
  attributes.ai_protocol = 0;
  sockaddr_in unreachable{};
  unreachable.sin_family = AF_INET;
  unreachable.sin_addr.s_addr = htonl(0x7fffffff);  // 127.255.255.255
  attributes.ai_addr = {};
  std::memcpy(&attributes.ai_addr, &unreachable, sizeof unreachable);
  attributes.ai_addrlen = sizeof unreachable;
  const Descriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(probe.get(), reinterpret_cast<const sockaddr*>(&unreachable), sizeof unreachable) != 0) {
    throw InvalidInput(str("the loopback interface has no broadcast address 127.255.255.255 (",
                           std::strerror(errno), "), which Gloo needs; make one with: ip link set lo up"));
  }
  return std::make_shared<tcp::Device>(attributes);
}

std::shared_ptr<gloo::Context> make_gloo_context(std::shared_ptr<gloo::transport::Device> device,
                                                 std::int32_t index, std::vector<Descriptor> sockets,
                                                 std::chrono::milliseconds timeout, ArrivedBytes arrived,
                                                 std::shared_ptr<PassedPayloads> passed) {
  return std::make_shared<SealedContext>(std::dynamic_pointer_cast<tcp::Device>(std::move(device)), index,
                                         std::move(sockets), timeout, std::move(arrived), std::move(passed));
}

}  // namespace cp::runtime
