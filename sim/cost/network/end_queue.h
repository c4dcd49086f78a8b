// EndQueue: the running flows, ordered by the time at which they will end. It is a heap whose entries can be
// moved when a flow's rate changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cp::sim {

// Among equal times, the flow with the smallest number comes first. Each node has four children: that makes
// fewer levels than two, and the four lie side by side in memory.
class EndQueue {
 public:
  struct Entry {
    double end_ns;
    std::int32_t flow;
  };

  bool empty() const { return heap_.empty(); }
  const Entry& top() const { return heap_.front(); }

  // Inserts the flow, or moves it if it is in the queue.
  void set(std::int32_t flow, double end_ns) {
    const auto index = static_cast<std::size_t>(flow);
    if (index >= position_.size()) position_.resize(index + 1, kAbsent);
    const Entry entry{end_ns, flow};
    if (position_[index] == kAbsent) {
      heap_.push_back(entry);
      rise(heap_.size() - 1, entry);
      return;
    }
    const std::size_t at = position_[index];
    if (before(entry, heap_[at])) {
      rise(at, entry);
    } else {
      sink(at, entry);
    }
  }

  void pop() {
    position_[static_cast<std::size_t>(heap_.front().flow)] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(0, last);
  }

 private:
  static constexpr std::uint32_t kAbsent = 0xffffffff;

  static bool before(const Entry& a, const Entry& b) {
    return a.end_ns < b.end_ns || (a.end_ns == b.end_ns && a.flow < b.flow);
  }
  void put(std::size_t at, const Entry& entry) {
    heap_[at] = entry;
    position_[static_cast<std::size_t>(entry.flow)] = static_cast<std::uint32_t>(at);
  }
  void rise(std::size_t at, const Entry& entry) {
    while (at > 0) {
      const std::size_t parent = (at - 1) / 4;
      if (!before(entry, heap_[parent])) break;
      put(at, heap_[parent]);
      at = parent;
    }
    put(at, entry);
  }
  void sink(std::size_t at, const Entry& entry) {
    for (std::size_t first = 4 * at + 1; first < heap_.size(); first = 4 * at + 1) {
      const std::size_t end = first + 4 < heap_.size() ? first + 4 : heap_.size();
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (before(heap_[child], heap_[least])) least = child;
      }
      if (!before(heap_[least], entry)) break;
      put(at, heap_[least]);
      at = least;
    }
    put(at, entry);
  }

  std::vector<Entry> heap_;
  std::vector<std::uint32_t> position_;  // by flow
};

}  // namespace cp::sim
