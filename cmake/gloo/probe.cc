// What runtime/gloo/sealed_context.cc needs of Gloo: compiled and linked when the build is configured, so that a Gloo with other classes
// is named there, and not in a page of compiler errors.
#include <memory>
#include <mutex>
#include <sys/uio.h>

#include <gloo/common/logging.h>
#include <gloo/context.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

namespace tcp = gloo::transport::tcp;

class ProbePair final : public tcp::Pair {
 public:
  ProbePair(tcp::Context* context, tcp::Device* device, int connected)
      : tcp::Pair(context, device, 0, std::chrono::milliseconds(1)) {
    const std::lock_guard lock(m_);
    if (state_ == LISTENING) fd_ = connected;
    handleConnected();
  }

 protected:
  void handleReadWrite(int events) override { tcp::Pair::handleReadWrite(events); }
  bool read() override {
    gloo::NonOwningPtr<tcp::UnboundBuffer> buffer;
    iovec into{};
    if (prepareRead(rx_, buffer, into) < 0) return false;
    if (rx_.getOpcode() == tcp::Op::SEND_UNBOUND_BUFFER && rx_.preamble.length != rx_.nbytes)
      signalException(std::exception_ptr());
    rx_.nread += 1;
    readComplete(buffer);
    return true;
  }
  bool write(tcp::Op& op) override {
    const gloo::NonOwningPtr<tcp::UnboundBuffer> from(op.ubuf);
    gloo::NonOwningPtr<tcp::UnboundBuffer> buffer(op.ubuf);
    iovec parts[2];
    int count = 0;
    if (prepareWrite(op, from, parts, count) < 0 || op.nwritten < op.preamble.nbytes)
      return tcp::Pair::write(op);
    writeComplete(op, buffer, op.getOpcode());
    return true;
  }
  void changeState(state next) noexcept override {
    localPendingRecv_[rx_.preamble.slot].emplace_back(rx_.ubuf, rx_.offset, rx_.nbytes);
    if (ex_ == nullptr) signalException(peer_.str());
    tcp::Pair::changeState(next);
  }
};

class ProbeTransport final : public tcp::Context {
 public:
  using tcp::Context::Context;
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    return pairs_.at(0) = std::make_unique<ProbePair>(this, device_.get(), peer);
  }
};

class ProbeContext final : public gloo::Context {
 public:
  explicit ProbeContext(const std::shared_ptr<tcp::Device>& device) : gloo::Context(0, 1) {
    auto transport = std::make_shared<ProbeTransport>(device, 0, 1);
    transport->setTimeout(getTimeout());
    device_ = device;
    transportContext_ = transport;
  }
};

int main() {
  tcp::attr attributes;
  attributes.ai_addrlen = sizeof attributes.ai_addr;
  const ProbeContext context(std::make_shared<tcp::Device>(attributes));
}
