// What the rendezvous knows of each rank, and the failures that it names.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/types.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {

// The last collective that a rank has begun on a group.
struct Progress {
  std::string group;           // "cp[0,1,2,3]": its name and ranks
  std::int64_t sequence = -1;  // the how-manieth collective on the group, from 0; -1: none yet
  std::string operation;       // "all_gather"
  Digest digest;               // of all operations on the group up to this one
  std::int64_t step = -1;      // of the run, where the caller counts steps
  bool operator==(const Progress&) const = default;
};

// "all_gather #17 of cp[0,1,2,3], step 40"; "before its first collective".
std::string to_string(const Progress& progress);
// "last heard 2.1 s ago at all_gather #17 of cp[0,1,2,3], step 40": of what may have gone on since.
std::string last_heard(const Progress& progress, std::chrono::milliseconds age);

// What a rank is at, in its own words.
struct Activity {
  struct Collective {
    std::string group;
    std::int64_t sequence = -1;
    std::string operation;
    bool operator==(const Collective&) const = default;
  };
  bool waits = false;                   // it can do nothing until one of these ends
  std::vector<Collective> collectives;  // that it is in
  std::uint64_t moved = 0;              // grows while payload arrives or leaves
  bool operator==(const Activity&) const = default;
};

struct Failure {
  ErrorKind kind = ErrorKind::peer_lost;
  Rank rank = -1;  // -1: the server, or the job as a whole
  std::string host;
  std::int64_t pid = 0;
  std::string message;
  Progress progress;  // the last that was heard of; none where the message says where it was
  std::chrono::milliseconds progress_age{0};  // how long before the failure that was; 0: at the failure
};

// "rank 2 (host b, pid 4711), last heard 2.1 s ago at all_gather #17 of cp[0,1,2,3]: its connection was
// closed ...". Of what is as new as the failure: "rank 2 (host b, pid 4711) at all_gather #17 of cp[0,1,2,3]:
// ...".
std::string to_string(const Failure& failure);
// The same as data, of an error that somebody meets because of it: whose fault it is, and the collective that
// it was last heard of in.
ErrorFacts facts_of(const Failure& failure);

enum class RankState : std::uint8_t { absent, joined, left, lost };

struct RankStatus {
  Rank rank = 0;
  RankState state = RankState::absent;
  std::string host;
  std::int64_t pid = 0;
  std::chrono::milliseconds silent_for{0};  // since its last heartbeat
  Progress latest;
  std::chrono::milliseconds latest_age{0};  // since that was heard
  std::map<std::string, Progress> groups;   // the latest of each group
};

using cp::members_of;
using cp::ranks_text;

// "2 s", "1.5 s", "250 ms".
std::string duration_text(std::chrono::milliseconds duration);

// Who has not begun a collective that others wait in: "rank 3 has not joined all_gather #17 of group
// cp[0,1,2,3] after 30 s; ranks 0, 1, 2 wait". What is known of other ranks is as old as their last
// heartbeats.
std::string describe_wait(const Progress& awaited, std::chrono::milliseconds waited,
                          const std::vector<RankStatus>& ranks);

}  // namespace cp::runtime
