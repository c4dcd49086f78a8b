// Folds the global rows of a view's keys into periodic runs, so that the keys of a slice are few runs,
// however many they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/placement/index_set.h"

namespace cp::sim {

class KeyRuns {
 public:
  // `rows` are the global rows in local order; -1 stands for a row that is no key.
  explicit KeyRuns(std::span<const std::int64_t> rows);

  // Calls visit(run) for the rows at the local positions [begin, end), in order. A run of rows that are no
  // keys has begin -1.
  template <class Visit>
  void for_each(std::int64_t begin, std::int64_t end, const Visit& visit) const {
    for (std::size_t p = first_piece(begin); p < pieces_.size() && pieces_[p].local < end; ++p) {
      const Piece& piece = pieces_[p];
      std::int64_t from = begin > piece.local ? begin - piece.local : 0;
      const std::int64_t to = end < piece.local + piece.run.size() ? end - piece.local : piece.run.size();
      const std::int64_t length = piece.run.run;
      const auto emit = [&](std::int64_t blocks, std::int64_t size) {
        const std::int64_t global = piece.run.begin + from / length * piece.run.stride + from % length;
        visit(Run{piece.run.begin < 0 ? -1 : global, size, blocks == 1 ? size : piece.run.stride, blocks});
        from += blocks * size;
      };
      if (from % length != 0)
        emit(1, to - from < length - from % length ? to - from : length - from % length);
      if (to - from >= length) emit((to - from) / length, length);
      if (from < to) emit(1, to - from);
    }
  }

 private:
  struct Piece {
    Run run;
    std::int64_t local = 0;
  };
  std::size_t first_piece(std::int64_t local) const;

  std::vector<Piece> pieces_;
};

}  // namespace cp::sim
