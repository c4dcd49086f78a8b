#include "runtime/nccl/nccl_environment.h"

#include <cstdlib>
#include <memory>
#include <netinet/in.h>
#include <string_view>
#include <sys/socket.h>

#include <ifaddrs.h>
#include <netdb.h>

#include "runtime/rendezvous/authentication.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

std::string numeric(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = {};
  return getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

// The name of the interface that is called `interface` or has the numeric address; empty if there is none.
std::string interface_name(const std::string& interface, const std::string& address) {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(raw, &freeifaddrs);
  std::string found;
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (interface == entry->ifa_name) return interface;
    if (found.empty() && numeric(entry->ifa_addr) == address) found = entry->ifa_name;
  }
  // All of 127.0.0.0/8 is lo's, which lists one of them.
  return found.empty() && address.starts_with("127.") ? "lo" : found;
}

// 8 bytes of an HMAC by the token in hexadecimal, since NCCL's number has 64 bits. Nobody can find the token
// from it.
std::string socket_magic(const JobEnvironment& job) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::string mac = hmac_sha256(job.token, str("cpsim nccl sockets ", job.job_id));
  std::string text = "0x";
  for (const char c : mac.substr(0, 8)) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4], text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

std::vector<std::string> nccl_variables(const JobEnvironment& rank, const LaunchNetwork& network) {
  std::vector<std::string> variables;
  const auto set = [&variables](const char* name, std::string_view value) {
    if (std::getenv(name) == nullptr && !value.empty()) variables.push_back(str(name, "=", value));
  };
  set("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  set("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  set("NCCL_GRAPH_REGISTER", "0");
  const std::string name = network.interface.empty() ? "" : interface_name(network.interface, rank.interface);
  const bool one_machine = rank.allow_shared_gpu && network.machines == 1;
  set("NCCL_SOCKET_IFNAME", !name.empty() ? "=" + name : one_machine ? "lo" : "");  // "=": this one alone
  set("NCCL_SOCKET_MAGIC", socket_magic(rank));
  if (!rank.allow_shared_gpu) return variables;
  variables.push_back(str("NCCL_HOSTID=", rank.job_id, "-", rank.rank));  // no two alike
  set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  set("NCCL_NET", "Socket");
  set("NCCL_MNNVL_ENABLE", "0");
  return variables;
}

}  // namespace cp::runtime
