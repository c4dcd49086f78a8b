// A progress page tells what a rank is doing, in memory that the rank shares with its launcher on the same
// machine. It is exact even after the rank has died in any way.
//
// The launcher makes a page for each process that it starts, and the process inherits its descriptor. The
// rank's devices write into it when a collective begins and when it has ended; that costs a few stores.
// Whoever reads the page when the rank is dead or stopped finds what was written last, and never half of it.
// A program that does not use this library leaves its page empty.
//
// The memory is a memfd: it has no name, and the kernel frees it with its last user. A rank can write only
// its own page, and cannot make it smaller.
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

// Room for the name and the ranks of a group, and for the name of an operation. Longer texts are cut and end
// with "...". With these sizes a track has 512 bytes (see the static_assert below).
inline constexpr std::size_t kPageGroupBytes = 192, kPageOperationBytes = 32;
// How many streams of a rank's devices have a track. 31 tracks and the head make a page of 16 KiB.
inline constexpr int kPageTracks = 31;

// What a page says, if its rank has opened it.
struct PageReport {
  // The collectives that have begun and not ended, the one that began last first. There are several if
  // several streams communicate.
  std::vector<Progress> under_way;
  std::optional<Progress> ended;  // the one that ended last; useful if none is under way
  // False if some stream had no track, or if an earlier device was destroyed during a collective.
  bool knows_all = true;
  // 0 if the page is exact. On a GPU, begin and end are noticed by looking at this interval.
  std::chrono::milliseconds look_every{0};
};

// "in all_gather #17 of cp[0,1,2,3], step 40", "after all_gather #17 of cp[0,1,2,3], step 40, had ended",
// "before its first collective"; of what is looked at from time to time: "(last seen in all_gather ...; its
// GPU is checked every 10 ms)". Empty where the page does not know.
std::string to_string(const PageReport& report);

namespace page {

// One collective of one stream. It is made of words, each of which is written in one store.
struct Entry {
  std::atomic<std::uint64_t> order, number, step;
  std::array<std::atomic<std::uint64_t>, kPageGroupBytes / 8> group;
  std::array<std::atomic<std::uint64_t>, kPageOperationBytes / 8> operation;
};

// The next collective is written beside the current one, and becomes current by one store.
struct Track {
  // How many collectives have begun; the current one is entries[current % 2]. 0: none yet.
  std::atomic<std::uint64_t> current;
  std::atomic<std::uint64_t> ended;  // if this is above the current entry's order, that one has ended
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

// The launcher's side of a page.
class ProgressReader {
 public:
  // Makes a page. If the system gives no such memory, nothing is shared, and read() returns nothing.
  ProgressReader();

  // The value of kProgressVariable for the process; empty if nothing is shared. Call it before
  // take_descriptor(), whose result the process must inherit.
  std::string text() const;
  Descriptor take_descriptor() { return std::move(descriptor_); }

  // Returns what the page says, or nothing as long as no program of this library has opened it. It may be
  // called at any time; the result is consistent even while the rank writes.
  std::optional<PageReport> read() const;

 private:
  Descriptor descriptor_;
  page::Mapping page_;
};

inline constexpr const char* kProgressVariable = "CPRUN_PROGRESS";

// The rank's side of a page.
class ProgressWriter {
 public:
  // Opens the page that `text` names, the value of kProgressVariable, and closes the descriptor. Returns null
  // if the descriptor does not exist any more, because a program between the launcher and this one closed it.
  static std::shared_ptr<ProgressWriter> open(const std::string& text);

  // Takes a track for a stream; one thread at a time may use it. Returns -1 if none is left; the other
  // functions then ignore that stream. release() gives it back.
  int claim();
  void release(int track);
  // To be called by a device that notices begin and end only by looking at this interval.
  void set_look_every(std::chrono::milliseconds period);

  void begun(int track, std::string_view group, std::string_view operation, std::int64_t number,
             std::int64_t step);
  void ended(int track);

 private:
  explicit ProgressWriter(page::Mapping page) : page_(std::move(page)) {}

  void give_up(page::Track& track);

  page::Mapping page_;
  std::atomic<std::uint64_t> events_{0};  // how many begins and ends there were, on all tracks
  std::mutex mutex_;                      // guards claimed_
  std::array<bool, kPageTracks> claimed_{};
};

}  // namespace cp::runtime
