// Addresses: where to listen, and whom to call.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <boost/asio/ip/tcp.hpp>

namespace cp::runtime {

// "127.0.0.1:29500", "[::1]:29500".
std::string endpoint_text(const std::string& host, std::uint16_t port);

// A socket that listens on the named interface alone: an address, an interface ("eth0", its first address) or
// a host name of this machine. Port 0: any that is free. Not inherited by programs that are started later.
// Throws AddressInUse, and RendezvousError for an interface that is none of this machine, with those that
// are.
boost::asio::ip::tcp::acceptor listen_on(boost::asio::io_context& io, const std::string& interface,
                                         std::uint16_t port);

// The next connection that waits, if any does; not inherited either.
bool accept_one(boost::asio::ip::tcp::acceptor& acceptor, boost::asio::ip::tcp::socket& socket);

// An unconnected socket for the endpoint's protocol, not inherited.
boost::asio::ip::tcp::socket make_socket(boost::asio::io_context& io,
                                         const boost::asio::ip::tcp::endpoint& endpoint);

// The numeric address of an interface, address or host name of this machine. Throws RendezvousError with
// those that are.
std::string own_address(const std::string& interface);

}  // namespace cp::runtime
