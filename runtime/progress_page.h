// What a rank is doing, in memory that it shares with its launcher on the same machine: exact after any death
// of the rank.
//
// The launcher makes a page for each process that it starts and hands its descriptor down; the rank's devices
// write there when a collective begins and when it has ended, at the cost of some stores; whoever reads it
// when the rank is dead, or stopped, finds what was written last, whole. A program that does not use this
// library leaves its page as it was.
//
// The memory is one of the kernel's (memfd): it has no name, and goes with its last user. A rank can write
// its own page alone, and cannot make it smaller.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/descriptor.h"
#include "runtime/rendezvous/status.h"

namespace cp::runtime {

// The name and the ranks of a group, and the name of an operation: what is longer is cut, and ends with
// "...".
inline constexpr std::size_t kPageGroupBytes = 192, kPageOperationBytes = 32;
// Streams of a rank's devices that have a track of their own.
inline constexpr int kPageTracks = 31;

// What the page of a rank that has opened it says.
struct PageReport {
  std::vector<Progress> under_way;  // latest begin first; more than one where several streams communicate
  std::optional<Progress> ended;    // that ended last; of use where none is under way
  bool knows_all = true;  // every stream had a track, and no device before the latest went amid a collective
  std::chrono::milliseconds look_every{
      0};  // 0: exact; else begin and end are seen by a look every so often (a GPU's)
};

// "in all_gather #17 of cp[0,1,2,3], step 40", "after all_gather #17 of cp[0,1,2,3], step 40, had ended",
// "before its first collective"; of what is looked at from time to time: "(last seen in all_gather ...; its
// GPU is checked every 10 ms)". Empty where the page does not know.
std::string to_string(const PageReport& report);

namespace page {

// One collective of one stream, by words that each are written as a whole.
struct Entry {
  std::atomic<std::uint64_t> order, number, step;
  std::array<std::atomic<std::uint64_t>, kPageGroupBytes / 8> group;
  std::array<std::atomic<std::uint64_t>, kPageOperationBytes / 8> operation;
};

// The next collective is written beside the current one, and becomes current by one store.
struct Track {
  std::atomic<std::uint64_t> current;  // begins so far: its entry is entries[current % 2]; 0: none
  std::atomic<std::uint64_t> ended;    // beyond the current entry's order: it has ended
  std::array<Entry, 2> entries;
};

struct Page {
  std::atomic<std::uint64_t> opened, untracked, look_every_ms;
  std::array<std::uint64_t, 61> unused;
  std::array<Track, kPageTracks> tracks;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "two processes share it");
static_assert(sizeof(Track) == 512 && sizeof(Page) == 16'384);

struct Unmap {
  void operator()(Page* page) const;
};
using Mapping = std::unique_ptr<Page, Unmap>;

}  // namespace page

// The launcher's side.
class ProgressReader {
 public:
  // Where the system gives no such memory, nothing is shared: the page is one that nobody opens.
  ProgressReader();

  // What the process is told by kProgressVariable; empty where nothing is shared. Before take_descriptor().
  std::string text() const;
  Descriptor take_descriptor() { return std::move(descriptor_); }  // for the process to inherit

  // Nothing while no program of this library has opened the page. Consistent at any time.
  std::optional<PageReport> read() const;

 private:
  Descriptor descriptor_;
  page::Mapping page_;
};

inline constexpr const char* kProgressVariable = "CPRUN_PROGRESS";

// The rank's side.
class ProgressWriter {
 public:
  // By the launcher's text, whose descriptor is closed here. Null where that descriptor is not here any more,
  // since a program in between closed it.
  static std::shared_ptr<ProgressWriter> open(const std::string& text);

  // A stream's place in the page, for one thread at a time; -1 where there is none left, which then is told
  // to nobody.
  int claim();
  void release(int track);
  // Of a device that learns of begin and end by looking so often.
  void set_look_every(std::chrono::milliseconds period);

  void begun(int track, std::string_view group, std::string_view operation, std::int64_t number,
             std::int64_t step);
  void ended(int track);

 private:
  explicit ProgressWriter(page::Mapping page) : page_(std::move(page)) {}

  void give_up(page::Track& track);

  page::Mapping page_;
  std::atomic<std::uint64_t> events_{0};  // begins and ends of all tracks so far
  std::mutex mutex_;                      // of the below
  std::array<bool, kPageTracks> claimed_{};
};

}  // namespace cp::runtime
