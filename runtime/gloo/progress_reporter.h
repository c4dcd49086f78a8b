// ProgressReporter: what the rendezvous server is told of each collective that a rank begins, so that it can name who is stuck and who
// does something else than the others.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "runtime/gloo/gloo_device.h"
#include "runtime/rendezvous/client.h"

namespace cp::runtime {

// For GlooOptions::on_collective.
class ProgressReporter {
 public:
  explicit ProgressReporter(RendezvousClient& client) : client_(client) {}  // which must outlive it

  void operator()(const CollectiveBegin& begin);

 private:
  RendezvousClient& client_;
  std::mutex mutex_;
  std::map<std::string, Digest> digests_;  // of all collectives so far, by group
};

}  // namespace cp::runtime
