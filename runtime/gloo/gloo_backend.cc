#include "runtime/gloo/gloo_backend.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "runtime/gloo/gloo_device.h"
#include "runtime/gloo/rendezvous_store.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {
namespace {

// A year, which stands for ever: a wait ends when the server finds that a rank is lost, or that none can go
// on. A timeout of its own would end jobs in which a peer computes for long.
constexpr std::chrono::hours kUntilTheServerEndsIt{24 * 365};

std::unique_ptr<ProcessDevice> make_gloo_device(DeviceRequest request) {
  const JobEnvironment& job = request.job;
  GlooOptions gloo;
  gloo.rank = job.rank;
  const std::string prefix = "gloo/" + request.name;
  gloo.store = std::make_shared<RendezvousStore>(request.client, prefix);
  gloo.on_connected = [client = request.client, prefix](const Group& group) {
    client->free_keys(str(prefix, canonical_name(group), "/"), group.ranks.size());
  };
  gloo.token = job.token, gloo.job_id = job.job_id;
  gloo.hostname = job.interface;
  gloo.timeout = job.timeout;
  gloo.wait_timeout = kUntilTheServerEndsIt;
  gloo.checksums = request.checksums;
  gloo.traces = request.traces;
  gloo.on_collective = std::move(request.on_collective);
  gloo.on_collective_end = std::move(request.on_collective_end);
  gloo.on_note = [](const std::string& note) { std::fputs(str("note: ", note, "\n").c_str(), stderr); };
  return std::make_unique<GlooDevice>(std::move(gloo));
}

}  // namespace

Backend gloo_backend() {
  Backend backend;
  backend.name = "gloo";
  backend.has_checksums = true;
  backend.make = make_gloo_device;
  backend.versions = gloo_library_versions;
  return backend;
}

}  // namespace cp::runtime
