#include "runtime/progress_page.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

using page::Entry;
using page::Mapping;
using page::Page;
using page::Track;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kMostNamed = 3;

template <std::size_t Words>
void put(std::array<std::atomic<std::uint64_t>, Words>& words, std::string_view text) {
  constexpr std::size_t kBytes = 8 * Words;
  constexpr std::string_view kCut = "...";
  std::array<char, kBytes> bytes{};
  const std::size_t most = kBytes - 1;
  std::memcpy(bytes.data(), text.data(), std::min(text.size(), most));
  if (text.size() > most) std::memcpy(bytes.data() + most - kCut.size(), kCut.data(), kCut.size());
  for (std::size_t i = 0; i < Words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    words[i].store(word, std::memory_order_relaxed);
  }
}

// A rank may have written anything there.
template <std::size_t Words>
std::string taken(const std::array<std::atomic<std::uint64_t>, Words>& words) {
  std::array<char, 8 * Words + 1> bytes{};
  for (std::size_t i = 0; i < Words; ++i) {
    const std::uint64_t word = words[i].load(std::memory_order_relaxed);
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
  std::string text(bytes.data());
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

// What is current on a track; nothing before the first.
struct Current {
  std::uint64_t order = 0, ended = 0;
  Progress progress;
};

// Of a rank that goes on writing, the next look finds another one current; who is that fast is left alone.
std::optional<Current> current_of(const Track& track) {
  constexpr int kMostLooks = 1000;
  Current found;
  for (int look = 0; look < kMostLooks; ++look) {
    const std::uint64_t serial = track.current.load(std::memory_order_acquire);
    if (serial == 0) return std::nullopt;
    const Entry& entry = track.entries[serial % 2];
    found.order = entry.order.load(std::memory_order_relaxed);
    found.progress = {.group = taken(entry.group),
                      .sequence = static_cast<std::int64_t>(entry.number.load(std::memory_order_relaxed)),
                      .operation = taken(entry.operation),
                      .digest = {},
                      .step = static_cast<std::int64_t>(entry.step.load(std::memory_order_relaxed))};
    found.ended = track.ended.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (track.current.load(std::memory_order_relaxed) == serial) break;
  }
  return found;
}

Mapping map(int descriptor) {
  void* const address = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return Mapping(address == MAP_FAILED ? nullptr : static_cast<Page*>(address));
}

}  // namespace

void page::Unmap::operator()(Page* page) const { ::munmap(page, sizeof(Page)); }

std::string to_string(const PageReport& report) {
  std::string text;
  if (!report.under_way.empty()) {
    const std::size_t named = std::min(report.under_way.size(), kMostNamed);
    for (std::size_t i = 0; i < named; ++i) {
      const bool is_last = i + 1 == report.under_way.size();
      text += str(i == 0 ? "in " : is_last ? " and in " : ", in ", to_string(report.under_way[i]));
    }
    if (report.under_way.size() > named) text += str(" and in ", report.under_way.size() - named, " more");
  } else if (!report.knows_all) {
    return "";
  } else if (report.ended) {
    text = str("after ", to_string(*report.ended), report.ended->step >= 0 ? "," : "", " had ended");
  } else {
    text = "before its first collective";
  }
  if (report.look_every.count() == 0) return text;
  return str("(last seen ", text, "; its GPU is checked every ", duration_text(report.look_every), ")");
}

ProgressReader::ProgressReader() {
  const Descriptor made(::memfd_create("cprun-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.is_open()) return;
  Descriptor shared(::fcntl(made.get(), F_DUPFD_CLOEXEC, 3));  // where 0, 1 or 2 were closed
  if (!shared.is_open() || ::ftruncate(shared.get(), sizeof(Page)) != 0 ||
      ::fcntl(shared.get(), F_ADD_SEALS, kSeals) != 0)
    return;
  page_ = map(shared.get());
  if (page_) descriptor_ = std::move(shared);
}

std::string ProgressReader::text() const {
  struct stat info = {};
  if (::fstat(descriptor_.get(), &info) != 0) return "";
  return str(descriptor_.get(), ":", info.st_ino);
}

std::optional<PageReport> ProgressReader::read() const {
  if (!page_ || page_->opened.load(std::memory_order_acquire) == 0) return std::nullopt;
  PageReport report;
  report.knows_all = page_->untracked.load(std::memory_order_relaxed) == 0;
  report.look_every = std::chrono::milliseconds(
      std::min<std::uint64_t>(page_->look_every_ms.load(std::memory_order_relaxed), 1'000'000));
  std::vector<Current> under_way;
  std::uint64_t last_end = 0;
  for (const Track& track : page_->tracks) {
    const std::optional<Current> current = current_of(track);
    if (!current) continue;
    if (current->ended <= current->order) {
      under_way.push_back(*current);
    } else if (current->ended > last_end) {
      last_end = current->ended;
      report.ended = current->progress;
    }
  }
  std::ranges::sort(under_way, std::ranges::greater(), &Current::order);
  for (Current& current : under_way) report.under_way.push_back(std::move(current.progress));
  return report;
}

std::shared_ptr<ProgressWriter> ProgressWriter::open(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return nullptr;
  std::int64_t number = -1, inode = -1;
  try {
    number = parse_int(text.substr(0, colon), kProgressVariable);
    inode = parse_int(text.substr(colon + 1), kProgressVariable);
  } catch (const Error&) {
    return nullptr;
  }
  if (number < 0 || number > std::numeric_limits<int>::max()) return nullptr;
  const int descriptor = static_cast<int>(number);
  struct stat info = {};
  const bool is_page = ::fstat(descriptor, &info) == 0 && static_cast<std::int64_t>(info.st_ino) == inode &&
                       info.st_size == static_cast<off_t>(sizeof(Page)) &&
                       ::fcntl(descriptor, F_GET_SEALS) == kSeals;
  if (!is_page) return nullptr;
  const Descriptor owned(descriptor);
  Mapping page = map(descriptor);
  if (!page) return nullptr;
  page->opened.store(1, std::memory_order_release);
  return std::shared_ptr<ProgressWriter>(new ProgressWriter(std::move(page)));
}

int ProgressWriter::claim() {
  const std::lock_guard lock(mutex_);
  for (int track = 0; track < kPageTracks; ++track) {
    if (!claimed_[static_cast<std::size_t>(track)]) give_up(page_->tracks[static_cast<std::size_t>(track)]);
  }
  const auto free = std::ranges::find(claimed_, false);
  if (free == claimed_.end()) {
    page_->untracked.store(1, std::memory_order_relaxed);
    return -1;
  }
  *free = true;
  return static_cast<int>(free - claimed_.begin());
}

// What a device was in when it went: nobody will say that it has ended.
void ProgressWriter::give_up(Track& track) {
  const std::uint64_t serial = track.current.load(std::memory_order_relaxed);
  if (serial == 0) return;
  const std::uint64_t order = track.entries[serial % 2].order.load(std::memory_order_relaxed);
  if (track.ended.load(std::memory_order_relaxed) > order) return;
  page_->untracked.store(1, std::memory_order_relaxed);
  track.ended.store(events_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_release);
}

// What it is in stays so until another device comes: a rank that fails in a collective ends soon after.
void ProgressWriter::release(int track) {
  if (track < 0) return;
  const std::lock_guard lock(mutex_);
  claimed_[static_cast<std::size_t>(track)] = false;
}

void ProgressWriter::set_look_every(std::chrono::milliseconds period) {
  page_->look_every_ms.store(static_cast<std::uint64_t>(period.count()), std::memory_order_relaxed);
}

void ProgressWriter::begun(int track, std::string_view group, std::string_view operation, std::int64_t number,
                           std::int64_t step) {
  if (track < 0) return;
  Track& own = page_->tracks[static_cast<std::size_t>(track)];
  const std::uint64_t serial = own.current.load(std::memory_order_relaxed) + 1;
  Entry& next = own.entries[serial % 2];
  std::atomic_thread_fence(
      std::memory_order_release);  // who still reads this entry sees that it is current no more
  next.order.store(events_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  next.number.store(static_cast<std::uint64_t>(number), std::memory_order_relaxed);
  next.step.store(static_cast<std::uint64_t>(step), std::memory_order_relaxed);
  put(next.group, group);
  put(next.operation, operation);
  own.current.store(serial, std::memory_order_release);
}

void ProgressWriter::ended(int track) {
  if (track < 0) return;
  page_->tracks[static_cast<std::size_t>(track)].ended.store(
      events_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace cp::runtime
