// Store: the server's keys and values, its barriers, and the requests that wait for them. No sockets and no
// clock of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "runtime/rendezvous/roster.h"
#include "runtime/rendezvous/wire.h"

namespace cp::runtime {

class Store {
 public:
  using Clock = std::chrono::steady_clock;
  using Reply = std::function<void(Message::Answer)>;

  // The roster tells who is there, for messages.
  explicit Store(const Roster& roster) : roster_(roster) {}

  // Set, Wait, Add, Gather and Free; the reply comes at once, or from a later call of this object.
  void handle(Rank rank, const Message::Request& request, Clock::time_point now, Reply reply);

  // Ends what has waited until now with a Timeout that names who has not come.
  void expire(Clock::time_point now);

  // The rank is gone, or all are told of a failure: nothing that it asked for is answered.
  void forget(Rank rank);
  void forget_all();

  std::size_t num_keys() const { return values_.size(); }

 private:
  struct Waiting {
    Rank rank = 0;
    std::uint64_t id = 0;
    Clock::time_point since, deadline;
    std::vector<std::string> keys;
    bool get = false;
    Reply reply;
  };
  struct Arrival {
    std::uint64_t id = 0;
    Clock::time_point since, deadline;
    std::string data;
    Reply reply;
  };
  struct Gathering {
    bool barrier = false;
    std::vector<Rank> ranks;  // that come, ascending
    std::map<Rank, Arrival> arrivals;
  };

  void set(const std::string& key, std::string value);
  std::string missing_key(const std::vector<std::string>& keys) const;  // the first that is not set, else ""
  void gather(Rank rank, const Message::Request& request, Clock::time_point now, Clock::time_point deadline,
              Reply reply);
  void complete(const std::string& name);
  void free(const Message::Free& request);
  std::string describe_absent() const;
  std::string describe_missing(const Gathering& gathering) const;

  const Roster& roster_;
  std::map<std::string, std::string> values_;
  std::list<Waiting> waiting_;
  std::map<std::string, Gathering> gatherings_;
  std::map<std::string, std::uint32_t> done_;  // readers, by prefix
};

}  // namespace cp::runtime
