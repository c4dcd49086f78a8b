#include "traces/environment.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <limits>
#include <unistd.h>

#include <openssl/evp.h>

#include "shared/base/digest.h"
#include "traces/types_proto.h"

namespace cp {

Environment this_environment(const EnvironmentOptions& options) {
  using std::chrono::system_clock;
  Environment environment;
  environment.host = options.hash_host ? hashed_host(options.host, options.host_salt) : options.host;
  environment.host_is_hashed = options.hash_host;
  environment.pid = getpid();
  environment.backend = options.backend;
  environment.libraries = options.libraries;
  environment.cpsim_version = options.cpsim_version;
  environment.world_size = options.world_size;
  environment.start_unix_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(system_clock::now().time_since_epoch()).count();
  if (!options.scenario_text.empty()) {
    environment.scenario_digest = Hasher().add(std::string_view(options.scenario_text)).digest();
  }
  return environment;
}

std::string hashed_host(std::string_view name, std::string_view salt) {
  // The length keeps salt and name apart.
  const std::string text = str(salt.size(), ":", salt, name);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  CP_INVARIANT(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1,
               "SHA-256 of ", text.size(), " bytes");
  std::string result = "host-";
  for (std::size_t i = 0; i < 4; ++i) {
    std::array<char, 3> byte{};
    std::snprintf(byte.data(), byte.size(), "%02x", static_cast<unsigned>(digest[i]));
    result += byte.data();
  }
  return result;
}

proto::Environment to_proto(const Environment& environment) {
  const FieldPath root("trace.environment");
  proto::Environment message;
  message.set_host(require_utf8(environment.host, FieldPath(root, "host")));
  message.set_host_is_hashed(environment.host_is_hashed);
  message.set_pid(environment.pid);
  message.set_backend(require_utf8(environment.backend, FieldPath(root, "backend")));
  for (const auto& [name, version] : environment.libraries) {
    proto::LibraryVersion& library = *message.add_libraries();
    library.set_name(require_utf8(name, FieldPath(root, "libraries")));
    library.set_version(require_utf8(version, FieldPath(root, "libraries")));
  }
  message.set_cpsim_version(require_utf8(environment.cpsim_version, FieldPath(root, "cpsim_version")));
  message.set_world_size(environment.world_size);
  message.set_start_unix_ns(environment.start_unix_ns);
  if (environment.scenario_digest) {
    *message.mutable_scenario_digest() = to_proto(*environment.scenario_digest);
  }
  return message;
}

Environment from_proto(const proto::Environment& message) {
  const FieldPath root("trace.environment");
  FieldPath(root, "pid").require_range(message.pid(), 0, std::numeric_limits<std::int64_t>::max());
  FieldPath(root, "world_size")
      .require_range(message.world_size(), 0, std::numeric_limits<std::int32_t>::max());
  Environment environment{.host = message.host(),
                          .host_is_hashed = message.host_is_hashed(),
                          .pid = message.pid(),
                          .backend = message.backend(),
                          .libraries = {},
                          .cpsim_version = message.cpsim_version(),
                          .world_size = message.world_size(),
                          .start_unix_ns = message.start_unix_ns(),
                          .scenario_digest = std::nullopt};
  for (int i = 0; i < message.libraries_size(); ++i) {
    const proto::LibraryVersion& library = message.libraries(i);
    if (!environment.libraries.emplace(library.name(), library.version()).second) {
      FieldPath(root, "libraries", i)
          .fail("names the library '", library.name(), "' a second time; give each library one version");
    }
  }
  if (message.has_scenario_digest()) environment.scenario_digest = from_proto(message.scenario_digest());
  return environment;
}

}  // namespace cp
