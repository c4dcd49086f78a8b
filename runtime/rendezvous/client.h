// RendezvousClient: a rank's place in its job.
//
//   RendezvousClient client({.port = port, .job_id = job, .rank = rank, .world_size = 4, .token = token});
//   client.set("address/0", "10.0.0.1:5000");
//   client.barrier("start");
//   ...
//   client.goodbye();
//
// The client has a thread that sends heartbeats, so that a rank that computes for long is not taken for lost.
// Once any rank of the job has failed, every call that waits or comes later throws PeerLost, which names that
// first failure. Any thread may call any function.
//
// The launchers of other machines than the server's are its clients too (ClientOptions::launches). They
// report how their ranks end, ask for the ranks' status, hear of the first failure and say goodbye. The
// server answers nothing else to them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/errors.h"
#include "runtime/rendezvous/status.h"

namespace cp::runtime {

struct ClientOptions {
  std::string host = "127.0.0.1";  // of the server
  std::uint16_t port = 0;
  std::string job_id = "cprun";
  Rank rank = 0;
  std::int32_t world_size = 1;
  std::int32_t launches = 0;  // of a launcher: how many ranks it starts, of which `rank` is the first
  std::string token;
  std::chrono::milliseconds timeout{30'000};  // of connecting, and of each call that names none
};

class RendezvousClient {
 public:
  using TimeLimit = std::optional<std::chrono::milliseconds>;  // nothing: ClientOptions::timeout

  // Joins the job. It tries to connect until the timeout, so the server may start later. Throws
  // RendezvousError if the server cannot be reached or refuses the rank, and AuthenticationError for a wrong
  // token, on either side.
  explicit RendezvousClient(ClientOptions options);
  // Without a goodbye() before, the other ranks take this rank for lost.
  ~RendezvousClient();

  Rank rank() const;
  std::int32_t world_size() const;

  // Sets a key of the whole job. Throws InvalidInput for a key above 1 KiB or a value above 1008 KiB.
  void set(const std::string& key, std::string_view value);
  // Waits until the key is set. Throws Timeout, whose message tells which ranks are not connected.
  std::string get(const std::string& key, TimeLimit limit = {});
  void wait(const std::vector<std::string>& keys, TimeLimit limit = {});
  // Adds to a counter, which is 0 at first, and returns the sum.
  std::int64_t add(const std::string& key, std::int64_t amount);

  // Return when all ranks have called them with this name; a name may be used again afterwards. Throw
  // Timeout: "barrier 'start' after 2 s: ranks 1, 3 of 4 have not come; ranks 0, 2 wait". The bytes of all
  // ranks together are at most 1008 KiB.
  void barrier(const std::string& name, TimeLimit limit = {});
  std::vector<std::string> all_gather(const std::string& name, std::string_view bytes, TimeLimit limit = {});

  // The same among some ranks only. They are given in ascending order, this rank is one of them, and the
  // bytes come in that order.
  std::vector<std::string> all_gather(const std::vector<Rank>& ranks, const std::string& name,
                                      std::string_view bytes, TimeLimit limit = {});
  // Says that this rank reads no key that begins with `prefix` any more. When as many ranks as `readers` have
  // said so, the server forgets these keys.
  void free_keys(const std::string& prefix, std::size_t readers);

  // To be called for each collective as it begins, with its group ("cp[0,1,2,3]"), its number on the group,
  // its name, and the digest of all collectives on the group up to it. The call is cheap: the next heartbeat
  // sends it. The numbers of a group must grow for as long as the client lives.
  void set_progress(std::string_view group, std::int64_t sequence, std::string_view operation,
                    const Digest& digest, std::int64_t step = -1);

  // Sets the function that heartbeats call, on the client's thread, to learn what the rank is doing. With an
  // empty function nobody knows, and the rank counts as computing. When this returns, the function that was
  // set before does not run any more.
  void set_activity(std::function<Activity()> source);

  // Sends the server what set_progress() was told since the last heartbeat. Does not wait.
  void tell_progress();

  // What the server knows of all ranks, from their last heartbeats. This rank's own progress is sent before.
  std::vector<RankStatus> ranks(TimeLimit limit = {});

  // The handler is called once, on the client's thread, when the job fails: with the first failure of any
  // rank, or with the loss of the server (rank -1). If the job has failed already, it is called at once, on
  // this thread. An empty handler removes the one before, which neither runs nor will run when this returns.
  void on_failure(std::function<void(const Failure&)> handler);
  std::optional<Failure> failure() const;

  // Reports that this rank has failed. Returns when the server knows, or soon. Never throws.
  void report_failure(ErrorKind kind, const std::string& message);
  // For launchers: reports how one of its ranks ended, or why the launcher ends them. Returns when the server
  // knows, or soon. Never throws.
  void report_found(const Failure& failure);

  // Says that this rank is done, so that its end is no failure. Returns when all members of its groups are
  // done too and have begun the same collectives: only then is it known that this rank's results are right.
  // It waits for as long as they take. Throws CollectiveMismatch if this rank differs from the others, and
  // PeerLost with the job's first failure, whichever rank's it is. Nothing else may be asked afterwards. A
  // launcher calls it when its ranks have ended well; it returns when those of all launchers have.
  void goodbye();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// For waits that may be as long as another rank's work. A year stands for no limit: a rank that is lost is
// noticed by its heartbeats, and not by this one.
inline constexpr RendezvousClient::TimeLimit kAsLongAsItTakes = std::chrono::hours(24 * 365);

}  // namespace cp::runtime
