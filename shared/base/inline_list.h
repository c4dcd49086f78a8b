// An InlineList is a short list that stores its values in place. It is for hot paths in which the allocation
// of a vector would be most of the work.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "shared/base/error.h"

namespace cp {

// Holds at most `kCapacity` trivial values; one more breaks an invariant. It has the part of std::vector's
// interface that is used here.
template <class T, std::size_t kCapacity>
class InlineList {
 public:
  InlineList() = default;
  InlineList(std::initializer_list<T> values) : InlineList(values.begin(), values.end()) {}
  template <class Iterator>
  InlineList(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(static_cast<T>(*first));
  }

  void push_back(T value) {
    CP_INVARIANT(size_ < kCapacity, "more than ", kCapacity, " values");
    values_[size_++] = value;
  }
  void pop_back() { --size_; }
  void resize_down(std::size_t size) { size_ = static_cast<std::uint8_t>(size); }  // size <= size()
  void clear() { size_ = 0; }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return values_.data(); }
  T* end() { return values_.data() + size_; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return values_.data() + size_; }
  T& operator[](std::size_t i) { return values_[i]; }
  const T& operator[](std::size_t i) const { return values_[i]; }
  const T& front() const { return values_[0]; }
  const T& back() const { return values_[size_ - 1U]; }

  bool operator==(const InlineList& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  std::array<T, kCapacity> values_;  // values from size_ on are never read
  std::uint8_t size_ = 0;
};

}  // namespace cp
