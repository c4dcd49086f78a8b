// Which of this machine's addresses its peers can reach it at.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cp::runtime {

// The numeric address that connections to the endpoint leave from, by the routes of this machine. Sends
// nothing. The host's name may be known only later: asks until the timeout. Throws RendezvousError.
std::string own_address_towards(const std::string& host, std::uint16_t port,
                                std::chrono::milliseconds timeout);

}  // namespace cp::runtime
