#include "runtime/gloo/rendezvous_store.h"

#include <string_view>

namespace cp::runtime {

RendezvousStore::RendezvousStore(std::shared_ptr<RendezvousClient> client, std::string prefix)
    : client_(std::move(client)), prefix_(std::move(prefix)) {}

void RendezvousStore::set(const std::string& key, const std::vector<char>& data) {
  client_->set(prefix_ + key, std::string_view(data.data(), data.size()));
}

std::vector<char> RendezvousStore::get(const std::string& key) {
  const std::string value = client_->get(prefix_ + key);
  return {value.begin(), value.end()};
}

void RendezvousStore::wait(const std::vector<std::string>& keys) { client_->wait(own(keys)); }

void RendezvousStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  client_->wait(own(keys), timeout);
}

std::vector<std::string> RendezvousStore::own(const std::vector<std::string>& keys) const {
  std::vector<std::string> all;
  for (const std::string& key : keys) all.push_back(prefix_ + key);
  return all;
}

}  // namespace cp::runtime
