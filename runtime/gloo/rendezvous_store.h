// RendezvousStore: what Gloo's contexts find one another through, kept by the job's rendezvous server.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gloo/rendezvous/store.h>

#include "runtime/rendezvous/client.h"

namespace cp::runtime {

// Throws what the client throws: Timeout for a key that nobody sets, PeerLost when the job has failed. Keys
// of two stores with one prefix are the same.
class RendezvousStore : public gloo::rendezvous::Store {
 public:
  explicit RendezvousStore(std::shared_ptr<RendezvousClient> client, std::string prefix = "gloo/");

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  std::vector<std::string> own(const std::vector<std::string>& keys) const;

  std::shared_ptr<RendezvousClient> client_;
  std::string prefix_;
};

}  // namespace cp::runtime
