#include "runtime/rendezvous/own_address.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <netdb.h>

#include "runtime/descriptor.h"
#include "runtime/errors.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

// The first that has a route, or why none has.
struct Attempt {
  std::optional<std::string> address;
  std::string problem;
};

Attempt attempt(const addrinfo& target) {
  const Descriptor probe(socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  const bool known = probe.is_open() && connect(probe.get(), target.ai_addr, target.ai_addrlen) == 0 &&
                     getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0;
  if (!known) return {{}, std::strerror(errno)};
  std::array<char, NI_MAXHOST> text{};
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, text.data(), text.size(),
                                nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return {{}, gai_strerror(error)};
  return {text.data(), ""};
}

Attempt attempt(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  if (const int error = getaddrinfo(host.c_str(), str(port).c_str(), &hints, &raw); error != 0)
    return {{}, gai_strerror(error)};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(raw, &freeaddrinfo);
  Attempt last;
  for (const addrinfo* target = raw; target != nullptr && !last.address; target = target->ai_next)
    last = attempt(*target);
  return last;
}

}  // namespace

std::string own_address_towards(const std::string& host, std::uint16_t port,
                                std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kRetry{100};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const Attempt last = attempt(host, port);
    if (last.address) return *last.address;
    if (std::chrono::steady_clock::now() + kRetry > deadline) {
      throw RendezvousError(
          str("this machine cannot reach ", host, ": ", last.problem, "; is the name right?"));
    }
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace cp::runtime
