// The environment of a trace says where a rank ran: host, back end, libraries, versions. These functions fill
// it in and convert it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "shared/plan/trace.h"
#include "traces/trace.pb.h"

namespace cp {

struct EnvironmentOptions {
  std::string host;                              // name of this machine
  std::string backend;                           // "fabric", "gloo", "nccl"
  std::map<std::string, std::string> libraries;  // version by name of the library
  std::string cpsim_version;
  std::int32_t world_size = 0;
  std::string scenario_text;  // empty if there is none
  bool hash_host = false;     // write hashed_host() instead of the host's name
  // Salt of the run: the same on all its ranks, and kept secret if nobody may guess the hosts' names.
  std::string host_salt;
};

// The environment of this process; its start time is now.
Environment this_environment(const EnvironmentOptions& options);

// "host-" and the first 8 hexadecimal digits of the SHA-256 of salt and name. So one can see which ranks of a
// run shared a host, but not match the hosts of two runs, unless their salts are equal. (8 digits are 32
// bits: two of 1,000 hosts collide with a probability of about 10^-4.)
std::string hashed_host(std::string_view name, std::string_view salt);

proto::Environment to_proto(const Environment& environment);
// Throws InvalidInput, with the path of the field and its value, if a pid or the world size is negative, or a
// library comes twice.
Environment from_proto(const proto::Environment& message);

}  // namespace cp
