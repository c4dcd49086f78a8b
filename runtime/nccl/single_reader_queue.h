// A queue from one thread to another without a lock, so that neither ever waits for the other. It has two
// blocks from the start, and one that was read is kept for what is written next: as long as the queue holds
// fewer values than a block has room for, it allocates nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace cp::runtime {

// `kBlock` is the number of values in a block.
template <class T, std::size_t kBlock>
class SingleReaderQueue {
 public:
  SingleReaderQueue() : write_(new Block), read_(write_) {}
  ~SingleReaderQueue() {
    while (read_ != nullptr) drop_block();
    delete spare_.load();
  }
  SingleReaderQueue(const SingleReaderQueue&) = delete;
  SingleReaderQueue& operator=(const SingleReaderQueue&) = delete;

  // ---- the writer
  void push(const T& value) {
    if (written_ == kBlock) {
      Block* next = spare_.exchange(nullptr, std::memory_order_acquire);
      if (next == nullptr) {
        next = new Block;
      } else {
        next->next.store(nullptr, std::memory_order_relaxed);
      }
      write_->next.store(next, std::memory_order_release);
      write_ = next;
      written_ = 0;
    }
    write_->values[written_++] = value;
    pushed_.fetch_add(1);  // sequentially consistent, for writers that then look whether the reader sleeps
  }

  // ---- the reader (several readers may take turns if a lock of their own keeps them apart)
  // Returns the oldest value, or null if the queue is empty. The reader may use and change it until pop().
  T* front() {
    if (popped_.load(std::memory_order_relaxed) == pushed_.load(std::memory_order_acquire)) return nullptr;
    if (read_at_ == kBlock) {
      drop_block();
      read_at_ = 0;
    }
    return &read_->values[read_at_];
  }
  void pop() {
    ++read_at_;
    popped_.fetch_add(1, std::memory_order_release);
  }

  // ---- any thread
  std::int64_t pushed() const { return pushed_.load(); }
  std::int64_t popped() const { return popped_.load(std::memory_order_acquire); }
  bool empty() const { return popped() == pushed(); }

 private:
  struct Block {
    std::array<T, kBlock> values;
    std::atomic<Block*> next{nullptr};
  };
  void drop_block() {
    Block* const next = read_->next.load(std::memory_order_acquire);
    delete spare_.exchange(read_, std::memory_order_acq_rel);
    read_ = next;
  }

  Block* write_;
  std::size_t written_ = 0;
  std::atomic<std::int64_t> pushed_{0}, popped_{0};
  std::atomic<Block*> spare_{new Block};
  Block* read_;
  std::size_t read_at_ = 0;
};

}  // namespace cp::runtime
