#include "tests/emulated_gpu/local_sockets.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include "shared/base/text.h"

namespace cp::emulated {
namespace {

constexpr int kPollMs = 20;

[[noreturn]] void fail(const std::string& what) { throw SocketError(str(what, ": ", std::strerror(errno))); }

struct Address {
  sockaddr_un address = {};
  socklen_t size = 0;
};

Address address_of(const std::string& name) {  // in the abstract namespace: the first byte is 0
  Address made;
  made.address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof made.address.sun_path) throw SocketError(str("name too long: ", name));
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

Socket make(int type = SOCK_STREAM) {
  Socket socket(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) fail("socket");
  return socket;
}

void wait_for(const Socket& socket, short events, const GivenUp& given_up) {
  while (true) {
    pollfd polled{socket.fd(), events, 0};
    if (::poll(&polled, 1, kPollMs) > 0) return;
    if (given_up()) throw SocketError("given up");
  }
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

void Socket::shut_down() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

Socket listen_at(const std::string& name) {
  Socket socket = make();
  const Address at = address_of(name);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0)
    fail(str("listen at ", name));
  return socket;
}

Socket connect_to(const std::string& name, const GivenUp& given_up) {
  const Address at = address_of(name);
  while (true) {
    Socket socket = make();
    if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0) return socket;
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) fail(str("connect to ", name));
    if (given_up()) throw SocketError("given up");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Socket accept_from(const Socket& listener, const GivenUp& given_up) {
  while (true) {
    wait_for(listener, POLLIN, given_up);
    Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() >= 0) return socket;
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) fail("accept");
  }
}

void send_all(const Socket& socket, const void* data, std::size_t size, const GivenUp& given_up) {
  const auto* from = static_cast<const std::byte*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(socket.fd(), from, size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) fail("send");
    if (sent < 0) {
      wait_for(socket, POLLOUT, given_up);
      continue;
    }
    from += sent;
    size -= static_cast<std::size_t>(sent);
  }
}

void receive_all(const Socket& socket, void* data, std::size_t size, const GivenUp& given_up) {
  auto* to = static_cast<std::byte*>(data);
  while (size > 0) {
    const ssize_t got = ::recv(socket.fd(), to, size, 0);
    if (got == 0) throw SocketError("the other side has closed");
    if (got < 0 && errno != EAGAIN && errno != EINTR) fail("receive");
    if (got < 0) {
      wait_for(socket, POLLIN, given_up);
      continue;
    }
    to += got;
    size -= static_cast<std::size_t>(got);
  }
}

Socket datagrams_at(const std::string& name) {
  Socket socket = make(SOCK_DGRAM);
  const Address at = address_of(name);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0)
    fail(str("datagrams at ", name));
  return socket;
}

bool try_send_to(const Socket& socket, const std::string& name, const void* data, std::size_t size) {
  const Address at = address_of(name);
  const ssize_t sent = ::sendto(socket.fd(), data, size, MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&at.address), at.size);
  if (sent < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNREFUSED) fail(str("send to ", name));
  return sent >= 0;
}

bool try_receive(const Socket& socket, void* data, std::size_t size) {
  const ssize_t got = ::recv(socket.fd(), data, size, 0);
  if (got < 0 && errno != EAGAIN && errno != EINTR) fail("receive a datagram");
  return got == static_cast<ssize_t>(size);
}

void wait_to_receive(const Socket& socket) {
  pollfd polled{socket.fd(), POLLIN, 0};
  static_cast<void>(::poll(&polled, 1, kPollMs));
}

std::string unique_socket_name() {
  static std::atomic<int> counter{0};
  std::random_device random;
  return str("cpsim-emulated-nccl-", getpid(), "-", counter++, "-", random(), "-", random());
}

}  // namespace cp::emulated
