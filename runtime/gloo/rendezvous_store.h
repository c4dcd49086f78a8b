// A RendezvousStore is a Gloo store whose keys and values the job's rendezvous server keeps. The ranks of a
// group find one another through it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gloo/rendezvous/store.h>

#include "runtime/rendezvous/client.h"

namespace cp::runtime {

// The store puts `prefix` before each key. Two stores with the same prefix share their keys. The functions
// throw what the client throws: Timeout for a key that nobody sets, PeerLost if the job has failed.
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
