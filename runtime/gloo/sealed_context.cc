#include "runtime/gloo/sealed_context.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <netinet/in.h>
#include <sys/socket.h>
#include <utility>

#include <gloo/common/logging.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include "shared/base/error.h"

#ifdef __SANITIZE_THREAD__
// A buffer's destructor waits, by a reference count, until nobody uses the buffer: of that, the thread sanitizer sees what is done here, and
// not what is done in the library.
extern "C" const char* __tsan_default_suppressions();  // NOLINT: the sanitizer's name
extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport::tcp::UnboundBuffer::~UnboundBuffer\n";
}
#endif

namespace cp::runtime {
namespace {

namespace tcp = gloo::transport::tcp;

class SealedPair final : public tcp::Pair {
 public:
  // Gloo's constructor listens, at the address of make_gloo_thread(), which nobody reaches; so its loop has seen nothing of that socket,
  // and forgets it when it is closed. The lock keeps the loop out until the connection is in its place.
  SealedPair(tcp::Context* context, tcp::Device* device, int peer, std::chrono::milliseconds timeout,
             Descriptor socket, ArrivedBytes arrived)
      : tcp::Pair(context, device, peer, timeout), arrived_(std::move(arrived)) {
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

  // Gloo's, and the size of what arrives.
  bool read() override {
    if (state_ == CLOSED) return false;
    gloo::NonOwningPtr<tcp::UnboundBuffer> buffer;
    for (;;) {
      iovec into = {.iov_base = nullptr, .iov_len = 0};
      // Where the message is too long it throws, but the receive has been found.
      try {
        if (prepareRead(rx_, buffer, into) < 0) return false;
      } catch (const gloo::EnforceNotMet&) {
        if (!refuse_other_size()) throw;
        return false;
      }
      if (refuse_other_size()) return false;
      if (into.iov_len == 0) break;
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
    }
    readComplete(buffer);
    return true;
  }

  // Gloo tells an error to all who wait for the pair but the one whose message has begun to arrive.
  void changeState(state next) noexcept override {
    if (next == CLOSED && ex_ != nullptr && rx_.ubuf) {
      const auto slot = rx_.preamble.slot;
      localPendingRecv_[slot].emplace_back(std::exchange(rx_.ubuf, {}), rx_.offset, rx_.nbytes);
      return signalException(std::exchange(ex_, nullptr));  // comes here again
    }
    tcp::Pair::changeState(next);
  }

 private:
  bool refuse_other_size() {
    const bool has_receive = rx_.nread >= sizeof(rx_.preamble) &&
                             rx_.getOpcode() == tcp::Op::SEND_UNBOUND_BUFFER && bool(rx_.ubuf);
    if (!has_receive || rx_.preamble.length == rx_.nbytes) return false;
    if (ex_ == nullptr) {
      signalException(std::make_exception_ptr(PayloadSizeError(rank_, rx_.preamble.length, rx_.nbytes)));
    }
    return true;
  }

  const ArrivedBytes arrived_;
};

class SealedTransport final : public tcp::Context {
 public:
  SealedTransport(std::shared_ptr<tcp::Device> device, int index, std::vector<Descriptor> sockets,
                  ArrivedBytes arrived)
      : tcp::Context(std::move(device), index, static_cast<int>(sockets.size())),
        sockets_(std::move(sockets)),
        arrived_(std::move(arrived)) {}

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    Descriptor socket = std::move(sockets_.at(static_cast<std::size_t>(peer)));
    auto& pair = pairs_.at(static_cast<std::size_t>(peer));
    pair = std::make_unique<SealedPair>(this, device_.get(), peer, getTimeout(), std::move(socket), arrived_);
    return pair;
  }

 private:
  std::vector<Descriptor> sockets_;
  const ArrivedBytes arrived_;
};

class SealedContext final : public gloo::Context {
 public:
  SealedContext(const std::shared_ptr<tcp::Device>& device, int index, std::vector<Descriptor> sockets,
                std::chrono::milliseconds timeout, ArrivedBytes arrived)
      : gloo::Context(index, static_cast<int>(sockets.size())) {
    setTimeout(timeout);
    auto transport = std::make_shared<SealedTransport>(device, index, std::move(sockets), std::move(arrived));
    transport->setTimeout(timeout);
    for (int peer = 0; peer < size; ++peer) {
      if (peer != index) transport->createPair(peer);
    }
    device_ = device;
    transportContext_ = std::move(transport);
  }
};

}  // namespace

PayloadSizeError::PayloadSizeError(std::int32_t from, std::size_t sent, std::size_t expected)
    : gloo::IoException(str("member ", from, " sent ", sent, " bytes where ", expected, " are expected")),
      sender(from),
      sent_bytes(sent),
      expected_bytes(expected) {}

// TCP has no broadcast: Linux lets a socket listen at a broadcast address, and nobody connect to it.
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
                           std::strerror(errno),
                           "), which Gloo's pairs are made at; use: ip link set lo up"));
  }
  return std::make_shared<tcp::Device>(attributes);
}

std::shared_ptr<gloo::Context> make_gloo_context(std::shared_ptr<gloo::transport::Device> device,
                                                 std::int32_t index, std::vector<Descriptor> sockets,
                                                 std::chrono::milliseconds timeout, ArrivedBytes arrived) {
  return std::make_shared<SealedContext>(std::dynamic_pointer_cast<tcp::Device>(std::move(device)), index,
                                         std::move(sockets), timeout, std::move(arrived));
}

}  // namespace cp::runtime
