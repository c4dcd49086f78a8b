// Order knows which steps of one plan happen before which, and derives the edges that make it so.
//
// Each instance of a step (one iteration of it) has a position in issue order. Its clock says for each stream
// the latest position that has finished before the instance starts; since a stream is a queue, everything
// before that position on the stream has finished, too. (Vector clocks: Mattern, "Virtual Time and Global
// States of Distributed Systems", 1989.)
//
// Only as many iterations of a Repeat get positions as its edges and their transitive effects need: what
// holds between neighbouring iterations there holds between all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

using Position = std::int32_t;
inline constexpr Position kNoPosition = -1;

class Order {
 public:
  struct Place {
    StreamId stream = 0;
    Position first = 0, last = 0;                  // of the step's first and last instance
    Position segment_first = 0, segment_last = 0;  // of its whole Repeat
  };

  const Place& place(StepId step) const { return places_[static_cast<std::size_t>(step)]; }
  Position num_positions() const { return num_positions_; }
  // True if all steps run on one stream: then issue order decides everything, and there are no clocks.
  bool one_stream() const { return num_streams_ == 1; }
  StreamId num_streams() const { return num_streams_; }
  // The latest position on `stream` that has finished before the instance at `position` starts; kNoPosition
  // if none.
  Position clock(Position position, StreamId stream) const {
    return clocks_[static_cast<std::size_t>(position) * static_cast<std::size_t>(num_streams_) +
                   static_cast<std::size_t>(stream)];
  }
  // The first position after `position` on the stream; num_positions() if none. Not for plans of one stream.
  Position next_on(StreamId stream, Position position) const;

 private:
  friend class EdgeDeriver;
  std::vector<Place> places_;
  std::vector<Position> clocks_;                  // by position, then stream
  std::vector<std::vector<Position>> on_stream_;  // positions by stream, ascending
  Position num_positions_ = 0;
  StreamId num_streams_ = 1;
};

// Derives and replaces the edges of all steps: if two steps on different streams touch a common element and
// at least one of them writes it, they run in the order in which they were issued, in every iteration of
// their Repeats. Edges that streams or other edges imply are left out.
Order derive_edges(Plan& plan);

}  // namespace cp
