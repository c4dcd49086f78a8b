#include "runtime/rendezvous/endpoint.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <ifaddrs.h>
#include <netdb.h>

#include "runtime/errors.h"

namespace cp::runtime {
namespace {

using boost::asio::ip::address;
using boost::asio::ip::tcp;

std::optional<address> to_address(const sockaddr* raw) {
  if (raw == nullptr) return std::nullopt;
  if (raw->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(raw);
    return boost::asio::ip::address_v4(ntohl(v4->sin_addr.s_addr));
  }
  if (raw->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(raw);
    boost::asio::ip::address_v6::bytes_type bytes;
    std::memcpy(bytes.data(), &v6->sin6_addr, bytes.size());
    return boost::asio::ip::address_v6(bytes, v6->sin6_scope_id);
  }
  return std::nullopt;
}

struct Interface {
  std::string name;
  address at;
};

// IPv4 first, since that is what people write.
std::vector<Interface> own_interfaces() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(raw, &freeifaddrs);
  std::vector<Interface> v4, v6;
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (const auto at = to_address(entry->ifa_addr))
      (at->is_v4() ? v4 : v6).push_back({entry->ifa_name, *at});
  }
  v4.insert(v4.end(), v6.begin(), v6.end());
  return v4;
}

std::string own_interfaces_text() {
  std::vector<std::string> texts;
  for (const Interface& interface : own_interfaces())
    texts.push_back(str(interface.name, " ", interface.at.to_string()));
  return join(texts, ", ");
}

address resolve_own(const std::string& interface) {
  boost::system::error_code error;
  const address literal = boost::asio::ip::make_address(interface, error);
  if (!error) return literal;
  for (const Interface& own : own_interfaces()) {
    if (own.name == interface) return own.at;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (getaddrinfo(interface.c_str(), nullptr, &hints, &raw) == 0) {
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(raw, &freeaddrinfo);
    if (const auto at = to_address(raw->ai_addr)) return *at;
  }
  throw RendezvousError(str("'", interface,
                            "' is not an address, interface or host name of this machine; it has ",
                            own_interfaces_text()));
}

}  // namespace

std::string endpoint_text(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? str(host, ":", port) : str("[", host, "]:", port);
}

std::string own_address(const std::string& interface) {
  const address at = resolve_own(interface);
  const std::vector<Interface> own = own_interfaces();
  const bool ours =
      at.is_loopback() || std::ranges::any_of(own, [&](const Interface& one) { return one.at == at; });
  if (ours) return at.to_string();
  throw RendezvousError(
      str("'", interface, "' is not an address of this machine; it has ", own_interfaces_text()));
}

tcp::acceptor listen_on(boost::asio::io_context& io, const std::string& interface, std::uint16_t port) {
  const tcp::endpoint endpoint(resolve_own(interface), port);
  const std::string text = endpoint_text(endpoint.address().to_string(), port);
  const auto fail = [&](int reason) {
    if (reason == EADDRINUSE) {
      throw AddressInUse(str(text, " is in use by another program; use another port"));
    }
    const std::string own = reason == EADDRNOTAVAIL ? str("; this machine has ", own_interfaces_text()) : "";
    throw RendezvousError(str("cannot listen on ", text, ": ", std::strerror(reason), own));
  };
  const int descriptor = socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) fail(errno);
  tcp::acceptor acceptor(io, endpoint.protocol(), descriptor);
  // Connections of an earlier job that linger do not count as use; another listener does.
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  if (bind(descriptor, endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0) fail(errno);
  if (listen(descriptor, SOMAXCONN) != 0) fail(errno);
  return acceptor;
}

bool accept_one(tcp::acceptor& acceptor, tcp::socket& connected) {
  const int descriptor = accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (descriptor < 0) return false;
  boost::system::error_code error;
  connected.assign(acceptor.local_endpoint().protocol(), descriptor, error);
  if (error) close(descriptor);
  return !error;
}

tcp::socket make_socket(boost::asio::io_context& io, const tcp::endpoint& endpoint) {
  const int descriptor = socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) throw RendezvousError(str("cannot make a socket: ", std::strerror(errno)));
  return tcp::socket(io, endpoint.protocol(), descriptor);
}

}  // namespace cp::runtime
