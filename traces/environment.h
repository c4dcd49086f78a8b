// Where a rank ran: how a trace's environment is filled in, shown and written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "shared/plan/trace.h"
#include "traces/trace.pb.h"

namespace cp {

struct EnvironmentOptions {
  std::string host;                              // the name of this machine
  std::string backend;                           // "fabric", "gloo", "nccl"
  std::map<std::string, std::string> libraries;  // versions, by name
  std::string cpsim_version;
  std::int32_t world_size = 0;
  std::string scenario_text;  // empty: no scenario
  bool hash_host = false;     // leave the host's name out
  std::string
      host_salt;  // of the run, the same on all its ranks, kept secret where names must not be guessed
};

// Of this process, which starts now.
Environment this_environment(const EnvironmentOptions& options);

// "host-" and the first 8 hexadecimal digits of the SHA-256 of salt and name: ranks of one run on one host
// can be told to be so, while the names of two runs cannot be matched.
std::string hashed_host(std::string_view name, std::string_view salt);

proto::Environment to_proto(const Environment& environment);
// Throws InvalidInput, with the path of the field and its value, for negative pids and world sizes and for a
// library that comes twice.
Environment from_proto(const proto::Environment& message);

}  // namespace cp
